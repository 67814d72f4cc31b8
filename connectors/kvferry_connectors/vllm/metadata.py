"""What the scheduler side and the workers say to each other, once a step and once at start."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvferry.node.pull.choice import Chosen


@dataclass(frozen=True)
class SessionIdentity:
    """Who this engine is towards its peers; a worker needs it to open sessions of its own."""

    node: str
    space: str
    incarnation: str
    components: dict[str, str]


@dataclass(frozen=True)
class LoadJob:
    """One transfer as every rank of the target executes it."""

    transfer: str
    request: str
    address: str
    incarnation: str
    hashes: tuple[bytes, ...]
    """Chain hashes of the blocks to pull, from block ``start`` of the prompt on."""
    start: int
    target_blocks: tuple[int, ...]
    deadline_ms: int
    follow: str = ""
    """Name of the source's prefill that still writes these blocks."""
    host_slots: tuple[int, ...] | None = None
    """Slots of this node's own host tier to copy from; None for blocks of another node."""


@dataclass(frozen=True)
class CopyOrder:
    """Blocks for every rank to copy into slots of its host tier."""

    id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass
class FerryMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Scheduler to workers, every step; pickled, so plain data only."""

    identity: SessionIdentity | None = None
    loads: list[LoadJob] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    copies: list[CopyOrder] = field(default_factory=list)


@dataclass(frozen=True)
class RankHello:
    """What a rank knows and the scheduler needs before the node can join."""

    rank: int
    ranks: int
    key: bytes
    backends: dict[str, bytes]
    left_out: dict[str, str]
    components: dict[str, str]
    block_bytes: int
    problem: str = ""
    reads_host: bool = False
    """It can read blocks from another node's host tier."""
    host_slots: int = 0
    """Room in the rank's own host tier; 0 without one."""
    host_backends: dict[str, bytes] = field(default_factory=dict)
    """What each data plane of the host tier says of itself."""
    host_problem: str = ""
    """Why it has no host tier although the options ask for one."""


@dataclass
class FerryHandshake(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """Rank to scheduler at start, where vLLM carries it to nobody but us."""

    hello: RankHello


@dataclass(frozen=True)
class RankResult:
    """How a transfer ended on one rank."""

    transfer: str
    request: str
    rank: int
    ok: bool
    count: int
    stage: str
    reason: str
    detail: str
    fence: str
    backend: str
    bytes: int
    verified_blocks: int
    pin_ms: float
    read_ms: float
    settle_ms: float
    total_ms: float
    chosen: Chosen | None = None
    """The backend that the rank uses for this source from now on, where it chose it now."""
    host_blocks: int = 0


@dataclass(frozen=True)
class RankCopied:
    """How a copy to the host tier ended on one rank."""

    order: int
    rank: int
    ok: bool
    detail: str = ""


@dataclass
class FerryWorkerMeta(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Ranks to scheduler, in the steps where there is something to say."""

    hellos: list[RankHello] = field(default_factory=list)
    results: list[RankResult] = field(default_factory=list)
    copied: list[RankCopied] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Join what several ranks said in one step."""
        if isinstance(other, FerryWorkerMeta):
            return FerryWorkerMeta(
                self.hellos + other.hellos,
                self.results + other.results,
                self.copied + other.copied,
            )
        return self
