"""Fixtures: nccl backends over host pools, all closed, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.contract.pools import Pool
from tests.leftovers import nothing_stays_open
from tests.unit.nccl.host_device import HostDevice

from kvferry.ports.backend import Authorize, ReadRequest, Regions
from kvferry_backends.nccl.backend import NcclBackend
from kvferry_backends.nccl.options import NcclOptions
from kvferry_backends.nccl.reading import Read

WAIT_S = 30.0


def allow(transfer: str, grant: bytes, packed: bytes) -> bool:
    return True


@dataclass
class End:
    """One backend with its pool and the device that stands in for a GPU."""

    pool: Pool
    backend: NcclBackend
    device: HostDevice

    def post(
        self,
        peer: bytes,
        sources: range | list[int],
        targets: range | list[int],
        *,
        transfer: str = "t",
        deadline_s: float = WAIT_S,
    ) -> Read:
        posted = self.backend.post(
            ReadRequest(
                transfer=transfer,
                peer=peer,
                grant=b"grant",
                source_blocks=sources,
                target_blocks=targets,
                deadline_s=deadline_s,
            )
        )
        assert isinstance(posted, Read)
        return posted


Make = Callable[..., End]


def make_end(
    pool: Pool,
    authorize: Authorize = allow,
    *,
    loud: bool = False,
    pace_s: float = 0.0,
    scatter_s: float = 0.0,
    **options: object,
) -> End:
    devices: list[HostDevice] = []

    def make_device(regions: Regions, parsed: NcclOptions) -> HostDevice:
        devices.append(HostDevice(regions, parsed, loud=loud, pace_s=pace_s, scatter_s=scatter_s))
        return devices[0]

    backend = NcclBackend({"chunk_bytes": 65536, **options}, make_device)
    backend.register(pool.regions, authorize)
    return End(pool, backend, devices[0])


@pytest.fixture
def make() -> Iterator[Make]:
    """Make ends; all are closed, and must leave no thread, descriptor or communicator."""
    made: list[End] = []

    def one(pool: Pool, authorize: Authorize = allow, **options: object) -> End:
        made.append(make_end(pool, authorize, **options))  # type: ignore[arg-type]
        return made[-1]

    with nothing_stays_open():
        yield one
        for end in made:
            end.backend.close()
            assert end.device.live == 0
