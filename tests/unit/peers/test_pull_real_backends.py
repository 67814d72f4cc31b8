"""The choice of a backend over real data planes: every byte in place, whichever moved it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.pools import Pool, pattern
from tests.unit.peers.puller_bench import PATIENT, Bench
from tests.unit.peers.support import eventually

from kvferry.errors import BackendUnavailable
from kvferry.node.export.grants import verify_grant
from kvferry.node.export.table import RankEndpoint
from kvferry.node.pull.jobs import PullResult
from kvferry.node.pull.puller import Puller
from kvferry.ports.backend import Backend, Verify
from kvferry_backends import registry

NAMES = ("peer_host", "tcp")
BLOCKS, BLOCK_BYTES = 256, 16384


class Engines:
    """A source and a target with pools of their own and both data planes."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.source_pool, self.target_pool = (Pool(BLOCKS, [BLOCK_BYTES]) for _ in range(2))
        self.source_pool.fill("source")
        key = self.bench.source.keys[0]

        def permitted(transfer: str, grant: bytes, packed: bytes) -> bool:
            return verify_grant(key, transfer, grant, packed)

        self.made: list[Backend] = []
        self.theirs = self.start(self.source_pool, permitted)
        self.ours = self.start(self.target_pool, lambda *asked: False)
        self.describe({backend.name: backend.describe() for backend in self.theirs})
        self.puller = Puller(self.bench.client, self.ours, block_bytes=BLOCK_BYTES, **PATIENT)

    def start(self, pool: Pool, authorize: object) -> list[Backend]:
        found = [registry.create(name) for name in NAMES]
        self.made += found
        for backend in found:
            backend.register(pool.regions, authorize)  # type: ignore[arg-type]
        return found

    def describe(self, descriptions: dict[str, bytes]) -> None:
        key = self.bench.source.keys[0]
        self.bench.source.table.set_ranks([RankEndpoint(key, descriptions)])

    def pull(self, name: str, blocks: int) -> PullResult:
        hashes = self.bench.source.offer(name, blocks)
        targets = tuple(range(BLOCKS - blocks, BLOCKS))
        job = self.bench.job(name, hashes, target_blocks=targets, verify=Verify.FULL)
        self.puller.submit(job)
        found: list[PullResult] = []
        assert eventually(lambda: bool(found.extend(self.puller.take()) or found))
        return found[0]

    def wrong(self, blocks: int, seed: str = "source") -> int:
        """How many of the last ``blocks`` target blocks do not hold the first source blocks."""
        return sum(
            self.target_pool.get(BLOCKS - blocks + at) != pattern(seed, at, BLOCK_BYTES)
            for at in range(blocks)
        )

    def close(self) -> None:
        self.puller.close()
        for backend in self.made:
            backend.close()
        self.bench.close()


@pytest.fixture
def engines() -> Iterator[Engines]:
    try:
        made = Engines()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_a_probed_transfer_is_whole(engines: Engines) -> None:
    result = engines.pull("a", 200)
    assert result.ok, result.detail
    assert result.chosen is not None
    assert {one.backend for one in result.chosen.measured} == set(NAMES)
    assert all(one.gb_per_s > 0 and one.floor_ms > 0 for one in result.chosen.measured)
    assert (result.count, result.bytes) == (200, 200 * BLOCK_BYTES)
    assert engines.wrong(200) == 0
    assert engines.wrong(200, seed="another") == 200


def test_what_one_data_plane_cannot_read_another_does(engines: Engines) -> None:
    described = {backend.name: backend.describe() for backend in engines.theirs}
    engines.describe({**described, "peer_host": b"no description"})
    result = engines.pull("a", 200)
    assert (result.ok, result.backend) == (True, "tcp"), result.detail
    assert result.chosen is not None
    assert "peer_host is set aside" in result.chosen.why
    assert engines.wrong(200) == 0
    assert engines.wrong(200, seed="another") == 200
