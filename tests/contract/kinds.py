"""The backends that the contract suite runs against, and what it must know of each.

To put one more under the contract, add an entry to :data:`KINDS`. One that cannot work on this
machine is skipped once, with its name and the backend's own reason. What a backend can do is
asked of its capabilities; an entry only says what those cannot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.contract.pools import Pool, make_pool

from kvferry.errors import BackendUnavailable
from kvferry.ports.backend import Backend, BackendFactory, Capabilities
from kvferry_backends import registry


@dataclass(frozen=True)
class Kind:
    """One backend, as the contract meets it."""

    name: str
    options: dict[str, object] = field(default_factory=dict)
    factory: BackendFactory | None = None
    """Makes it over a stand-in for hardware; None where the registry does."""
    memory: str = "host"
    """Of the pools on both sides."""
    devices: tuple[int, int] = (0, 0)
    """Of the source's and of the target's pool, where the memory has devices."""
    through: Callable[[str], dict[str, object]] | None = None
    """Options that make peers come through a relay at ``ip:port``; None without such a thing."""
    place_of: Callable[[bytes], dict[str, object]] = lambda description: {}
    """Options by which a successor takes the very place that a description names."""
    revokes: bool = True
    """Whether a source's ``close`` ends what peers can read; where it does not, ``done`` tells."""
    aborts_alone: bool = True
    """Whether an abort leaves the backend's other reads alone."""
    long_blocks: int = 1024
    """So many blocks of 64 KiB take long enough for a test to act in mid-read."""
    keeps_process_wide: bool = False
    """Its library keeps threads and descriptors until the process ends, so none are counted."""

    @property
    def label(self) -> str:
        """Its name, with whatever sets it apart."""
        memory = [] if self.memory == "host" else [self.memory]
        return "-".join([self.name, *memory, *self.options])

    def make(self, **options: object) -> Backend:
        """A backend of this kind.

        Raises:
            BackendUnavailable: it cannot work here.
        """
        merged = {**self.options, **options}
        if self.factory is not None:
            return self.factory(merged)
        return registry.create(self.name, merged)

    def pool(
        self, blocks: int, widths: Sequence[int], gap: int = 0, *, source: bool = False
    ) -> Pool:
        """A pool in this kind's memory."""
        device = self.devices[0 if source else 1]
        return make_pool(self.memory, blocks, widths, gap, device=device)

    @property
    def capabilities(self) -> Capabilities:
        return _meet(self)[1]

    @property
    def why_not(self) -> str:
        """Why it cannot run on this machine; empty where it can."""
        return _meet(self)[0]

    def __hash__(self) -> int:
        return hash(self.label)


@functools.cache
def _meet(kind: Kind) -> tuple[str, Capabilities]:
    nothing = Capabilities(frozenset(), False, False, "")
    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if kind.memory == "cuda" and devices <= max(kind.devices):
        wanted = max(kind.devices) + 1
        return f"it needs {wanted} CUDA devices, and this host has {devices}", nothing
    try:
        backend = kind.make()
    except BackendUnavailable as error:
        return str(error), nothing
    capabilities = backend.capabilities
    backend.close()
    assert kind.memory in capabilities.memory, f"{kind.label} is declared with the wrong memory"
    return "", capabilities


def _tcp_port(description: bytes) -> dict[str, object]:
    from kvferry_backends.tcp.wire import decode_peer

    return {"listen_port": int(decode_peer(description).address.rpartition(":")[2])}


def _tls_files() -> dict[str, object]:
    store = Path(__file__).parents[1] / "unit" / "backends" / "certificates"
    return {
        "tls_cert_file": str(store / "node.pem"),
        "tls_key_file": str(store / "node.key"),
        "tls_ca_file": str(store / "ca.pem"),
    }


def _nccl_port(description: bytes) -> dict[str, object]:
    from kvferry_backends.nccl.messages import PROTOCOL, PeerDescription
    from kvferry_backends.pairing import decode_description

    peer = decode_description(description, PeerDescription, PROTOCOL, "nccl")
    return {"listen_port": int(peer.address.rpartition(":")[2])}


def _nccl_stand_in(options: dict[str, object]) -> Backend:
    from tests.unit.nccl.host_device import HostNcclBackend

    return HostNcclBackend(options)


def _nixl_port(description: bytes) -> dict[str, object]:
    import msgspec

    from kvferry_backends.nixl.wire import PeerDescription

    peer = msgspec.msgpack.decode(description, type=PeerDescription)
    return {"listen_port": int(peer.address.rpartition(":")[2])}


KINDS = [
    Kind(
        name="tcp",
        through=lambda address: {"advertise": address},
        place_of=_tcp_port,
    ),
    Kind(
        name="tcp",
        options={"connections": 5, "chunk_blocks": 3},
        place_of=_tcp_port,
    ),
    Kind(name="tcp", options=_tls_files(), place_of=_tcp_port),
    Kind(name="peer_host", long_blocks=3072),
    Kind(name="peer_host", options={"threads": 2, "call_bytes": 65536 * 3}),
    Kind(
        name="nixl",
        options={"devices": ["lo"], "mode": "direct"},
        place_of=_nixl_port,
        aborts_alone=False,
        long_blocks=3072,
        keeps_process_wide=True,
    ),
    Kind(
        name="nixl",
        options={"devices": ["lo"], "mode": "packed", "slots": 3, "slot_bytes": 256 * 1024},
        place_of=_nixl_port,
        aborts_alone=False,
        long_blocks=2048,
        keeps_process_wide=True,
    ),
    Kind(
        name="nixl",
        memory="cuda",
        devices=(1, 0),
        place_of=_nixl_port,
        aborts_alone=False,
        long_blocks=65536,
        keeps_process_wide=True,
    ),
    Kind(
        name="peer",
        memory="cuda",
        devices=(1, 0),
        revokes=False,
        long_blocks=65536,
        keeps_process_wide=True,
    ),
    Kind(
        name="nccl_stand_in",
        options={"chunk_bytes": 65536 * 2},
        factory=_nccl_stand_in,
        place_of=_nccl_port,
    ),
    Kind(
        name="nccl",
        # Slow, and with few bytes queued on the device, which a frozen host does not stop.
        options={"max_ctas": 1, "chunk_bytes": 4 * 1024 * 1024},
        memory="cuda",
        devices=(1, 0),
        place_of=_nccl_port,
        long_blocks=16384,
        keeps_process_wide=True,
    ),
]

USABLE = [kind for kind in KINDS if not kind.why_not]
