"""What the facts stream says is the case. Mutable, deterministic, without a clock.

Only :func:`kvferry.core.apply.apply_batch` and :func:`kvferry.core.evolve.evolve` change it.
Times ending in ``stored_ms``, ``requested_ms`` and ``ended_ms`` are server store times.
"""

from __future__ import annotations

import msgspec

from kvferry.core.cost import LinkCost, PrefillCost
from kvferry.core.events import FACTS, Inventory
from kvferry.core.retention_gaps import SessionGaps
from kvferry.core.retention_settings import AS_STARTED, RetentionSettings
from kvferry.core.slots_state import Slots
from kvferry.core.totals import Totals
from kvferry.core.trials import Trial

HELD_BATCHES_MAX = 256
"""One producer window: how many batches may wait for a missing one before the node is fenced."""
EARLY_LANES_MAX = 64
"""Records of a space that are seen but whose ``node_joined`` is not there yet."""
ENDED_TRANSFERS_MAX = 2_000
EARLY_PINS_MAX = 1_024
QUARANTINED_MAX = 100
SUPERSEDED_MAX = 16
NODES_MAX = 1_024
"""Nodes of a space; above it the nodes that are gone are forgotten, oldest first."""
RATES_MAX = 4_096
INVENTORY_PARTS_MAX = 4_096

ShortHash = bytes
"""A name for the type where a field of a struct is called ``bytes``."""

JOINED, LEFT, CLOSED, FENCED = "joined", "left", "closed", "fenced"
OPEN, DONE, FAILED = "open", "done", "failed"
MODE_ON, MODE_PAUSED, MODE_OBSERVE = "on", "paused", "observe"
MODES = (MODE_ON, MODE_PAUSED, MODE_OBSERVE)
COST_LEARNED, COST_OFF = "learned", "off"


class Quarantined(msgspec.Struct, frozen=True):
    """A stored message that could not be decoded."""

    seq: int
    subject: str
    why: str


class HeldEntry(msgspec.Struct, frozen=True):
    """An entry that waits, with its event as msgpack, so that snapshots can hold it."""

    name: str
    event: bytes
    cause: str
    wall_ms: int


class HeldBatch(msgspec.Struct, frozen=True):
    """A batch that waits in a reorder buffer for the ones before it."""

    seq: int
    entries: tuple[HeldEntry, ...]
    stream_seq: int
    stored_ms: int


class LaneState(msgspec.Struct, kw_only=True):
    """How far one lane of one (incarnation, epoch) is read without a hole."""

    incarnation: str
    epoch: int
    last: int = 0
    """Sequence of the last event applied."""
    held: list[HeldBatch] = []
    """The reorder buffer: batches after a hole, in the order of their sequences."""
    broken: bool = False
    """A hole stayed for more than the buffer; nothing more of this record is read."""


class NodeState(msgspec.Struct, kw_only=True):
    """An engine instance (or a router) under its name, as of its last ``node_joined``."""

    name: str
    space: str
    incarnation: str
    epoch: int
    address: str = ""
    block_size: int = 0
    """Tokens in a block; 0 for a router."""
    components: dict[str, str] = {}
    backends: tuple[str, ...] = ()
    blocks: int = 0
    block_bytes: int = 0
    host_blocks: int = 0
    warnings: tuple[str, ...] = ()
    version: str = ""
    role: str = ""
    status: str = JOINED
    """``joined``, ``left``, ``closed`` or ``fenced`` (its record has a hole)."""
    why: str = ""
    joined_ms: int = 0
    lease_blocks: int = -1
    """How it keeps as it was started, as its ``node_joined`` says; so are the next four."""
    lease_ms: int = 0
    watermark_blocks: int = 0
    min_pull_tokens: int = 0
    retain_max_ms: int = -1
    superseded: list[str] = []
    """Earlier incarnations of the name, newest last; their facts are void."""
    lanes: dict[str, LaneState] = {}
    inventory: list[Inventory] = []
    """Parts of an inventory whose last part is not there yet."""

    @property
    def facts_seq(self) -> int:
        """Sequence of the last event of the facts lane in this epoch."""
        lane = self.lanes.get(FACTS)
        return lane.last if lane is not None else 0


class OfferState(msgspec.Struct, kw_only=True, gc=False):
    """A run that a node keeps: blocks 0 to ``count`` of one chain."""

    offer: str
    node: str
    incarnation: str
    rev: int
    tier: str
    """``cache`` for an offer without a lease, ``hbm`` or ``host`` for a lease."""
    count: int
    tail: bytes
    """Full hash of block ``count - 1``; empty when an eviction shortened the run."""
    hashes: bytes
    """Sampled short hashes, joined, from block ``base`` on that are still within ``count``."""
    base: int = 0
    ttl_ms: int = 0
    stored_ms: int = 0
    session: str = ""
    request: str = ""
    why: str = ""
    """What a lease is for."""


class TransferState(msgspec.Struct, kw_only=True, gc=False):
    """One attempt to move blocks; ``phase`` is ``open``, ``done`` or ``failed``."""

    transfer: str
    request: str
    target: str
    target_incarnation: str
    source: str
    source_incarnation: str = ""
    backend: str = ""
    basis: str = ""
    wanted: int = 0
    granted: int = 0
    predicted_ms: float = 0.0
    recompute_ms: float = 0.0
    queue_ms: float = 0.0
    upto: ShortHash = b""
    local_tokens: int = 0
    phase: str = OPEN
    stage: str = ""
    reason: str = ""
    """Why it failed: a reason of ``transfer_failed``, ``node_left`` or ``lost``."""
    bytes: int = 0
    tokens: int = 0
    count: int = 0
    total_ms: float = 0.0
    read_ms: float = 0.0
    moved_ms: float = 0.0
    """What the prediction is about: pin, read and settle together."""
    requested_ms: int = 0
    ended_ms: int = 0
    pin: str = ""
    """How the source says its pin ended; empty while it has not said."""


class LinkChoice(msgspec.Struct, frozen=True):
    """The backend that a target uses for a source."""

    backend: str
    why: str


class SpaceState(msgspec.Struct, kw_only=True):
    """Everything of one space."""

    nodes: dict[str, NodeState] = {}
    offers: dict[str, OfferState] = {}
    transfers: dict[str, TransferState] = {}
    """All open ones and the last ended ones."""
    ended: list[str] = []
    """Ended transfers in the order of their ends."""
    early_pins: dict[str, str] = {}
    """How pins ended whose transfer is not known yet: sources and targets write independently."""
    early: dict[str, LaneState] = {}
    """Records that have not begun, by node, incarnation and epoch."""
    rates: dict[str, LinkCost] = {}
    """What moving costs by ``source>target/backend``."""
    trials: dict[str, Trial] = {}
    """Pairs that were found too dear, by ``source>target``."""
    choices: dict[str, LinkChoice] = {}
    """The backend in use by ``source>target``."""
    prefill: dict[str, PrefillCost] = {}
    """What computing costs by node."""
    sessions: SessionGaps = msgspec.field(default_factory=SessionGaps)
    """When sessions come back."""
    slots: Slots = msgspec.field(default_factory=Slots)
    """Decode nodes that are lent; in the routers' space."""
    mode: str = MODE_ON
    modes: dict[str, str] = {}
    """Nodes whose mode differs from the space's."""
    retention: RetentionSettings = AS_STARTED
    """What is set of how nodes keep."""
    retentions: dict[str, RetentionSettings] = {}
    """What differs from that, by node."""
    policy_version: int = 0
    term: int = 0
    leader: str = ""
    cost: str = ""
    """How plans weigh moving against computing, as the leader says; empty if it does not."""
    checkpoint: int = 0
    """Highest stream sequence that a checkpoint covers."""
    totals: Totals = msgspec.field(default_factory=Totals)

    def mode_of(self, node: str) -> str:
        """The mode in force for a node."""
        return self.modes.get(node, self.mode)

    def retention_of(self, node: str) -> RetentionSettings:
        """What is set of how a node keeps."""
        return self.retentions.get(node, AS_STARTED).over(self.retention)

    def weighs(self, unsaid: bool) -> bool:
        """Whether plans weigh moving against computing; ``unsaid`` where no leader has said."""
        return self.cost == COST_LEARNED if self.cost else unsaid


class State(msgspec.Struct, kw_only=True):
    """The fold of the stream KVF up to ``position``."""

    spaces: dict[str, SpaceState] = {}
    position: int = 0
    """Last stream sequence applied."""
    quarantined: list[Quarantined] = []
    """The last messages that could not be decoded."""
    quarantined_total: int = 0
    dropped: dict[str, int] = {}
    """Batches and events that were not applied, by why: ``duplicate``, ``superseded``, ``void``,
    ``fenced``, ``deposed``, ``not_begun``, ``unknown_lane``; ``lost`` counts messages that
    were gone before they could be read. Not part of the digest."""

    def space(self, name: str) -> SpaceState:
        """The space of that name; an empty one is made when there is none."""
        found = self.spaces.get(name)
        if found is None:
            found = self.spaces[name] = SpaceState()
        return found
