"""What happened: the closed union of ledger events.

Each event has a stable name and an integer version, given by :data:`SCHEMAS`; a name never
changes its meaning. Who wrote an event, when, and in which order stands in its envelope
(:mod:`kvferry.core.envelope`), not here. Runs are consecutive blocks of one chain: ``count``
blocks from block ``start`` on. ``hashes`` hold sampled short hashes
(:func:`kvferry.ids.short_hashes`), ``tail`` the full 32-byte hash of a run's last block.
Times end in ``_ms`` and are durations of the writer's monotonic clock.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of all events."""


# --- blocks ---------------------------------------------------------------------------------


class Produced(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A run's KV is complete on the node. Blocks lane."""

    request: str
    start: int
    count: int
    tail: bytes
    parent: bytes = b""
    """Short hash of the block before the run; empty at the start of a prompt."""
    hashes: bytes = b""
    via: str = "computed"
    """``computed`` or ``pulled``."""


class Retained(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A run is kept: offered from the engine's cache, leased, renewed or moved to another tier.

    Keyed by (offer, rev): a higher rev replaces. ``tier`` is ``cache`` for an offer without a
    lease, ``hbm`` or ``host`` for a lease.
    """

    offer: str
    rev: int
    tier: str
    count: int
    tail: bytes
    hashes: bytes
    base: int = 0
    """Index of the first block that ``hashes`` lists; the blocks before it are listed elsewhere."""
    ttl_ms: int = 0
    """Lease time on the holder's monotonic clock; 0 for an offer without a lease."""
    request: str = ""
    session: str = ""


class Evicted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A run is no longer offered from block ``keep`` on; ``keep`` 0 ends the offer.

    ``reason``: ``reuse`` (the engine needed the memory), ``expired``, ``pressure``,
    ``superseded``, ``session_end``, ``node_left``, ``cleared``, ``paused``.
    In the blocks lane, with ``offer`` empty, it counts the engine's own cache evictions.
    """

    offer: str
    rev: int
    keep: int
    reason: str
    count: int = 0
    """Blocks that this event takes away."""
    superseded_by: str = ""


# --- transfers ------------------------------------------------------------------------------


class Requested(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A target wants a run: the plan it uses with its numbers, or why none (the miss).

    ``transfer`` is empty for a miss, and then ``miss`` says why: ``nothing_held``,
    ``diverged@N`` (N is the token), ``node_left``, ``space_mismatch``, ``bad_hint``,
    ``expired_hint``, ``not_offered``, ``too_dear``, ``too_short``, ``paused``, ``observe``,
    ``plan_late``, ``no_coordinator``, ``peer_unreachable``, ``unshareable``, ``policy_unset``,
    ``outbox_full``, ``local``, ``reuse_off``, ``unused``, ``aborted``. A request whose
    transfer failed ends with ``transfer_failed``.
    """

    request: str
    transfer: str = ""
    source: str = ""
    source_incarnation: str = ""
    wanted: int = 0
    """Full blocks of the prompt."""
    local_tokens: int = 0
    granted: int = 0
    """Blocks that the source granted, counted from the prompt's first block."""
    backend: str = ""
    basis: str = ""
    """``hint`` or ``plan``."""
    predicted_ms: float = 0.0
    recompute_ms: float = 0.0
    options: tuple[str, ...] = ()
    """The sources that the plan offered."""
    miss: str = ""
    session: str = ""
    external_id: str = ""


class Transferred(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A run arrived, its source answered ``intact``, and the request uses it."""

    transfer: str
    request: str
    source: str
    start: int
    count: int
    tokens: int
    bytes: int
    backend: str
    pin_ms: float = 0.0
    read_ms: float = 0.0
    settle_ms: float = 0.0
    total_ms: float = 0.0
    verify: str = "off"
    verified_blocks: int = 0


class TransferFailed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A transfer ended without use; the request recomputes.

    ``stage``: ``pin``, ``read``, ``settle``, ``use``. ``reason``: ``void``, ``digest``,
    ``refused``, ``unreachable``, ``deadline``, ``aborted``, ``error``, ``node_left``,
    ``unused`` (the scheduler took fewer tokens than offered).
    """

    transfer: str
    request: str
    source: str
    stage: str
    reason: str
    detail: str = ""
    fence: str = ""
    """How the backend was made unable to touch the blocks again, for example ``socket_closed``."""
    total_ms: float = 0.0


class PinEnded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A source's view of a pin's end. ``how``: ``intact``, ``void``, ``abort``, ``deadline``,
    ``refused``, ``closed``."""

    transfer: str
    target: str
    granted: int
    how: str
    held_ms: float = 0.0
    detail: str = ""


# --- requests -------------------------------------------------------------------------------


class RequestEnded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A request left the engine; local + pulled + computed = prompt tokens."""

    request: str
    external_id: str = ""
    session: str = ""
    prompt_tokens: int = 0
    local_tokens: int = 0
    pulled_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: float = 0.0
    outcome: str = "stop"
    """``stop``, ``length``, ``aborted``, ``error``."""
    source: str = ""
    miss: str = ""
    pull_ms: float = 0.0


class TurnEnded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A router answered one turn; joins the ids of both engines."""

    request: str
    session: str = ""
    prefill_node: str = ""
    decode_node: str = ""
    prefill_request: str = ""
    decode_request: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    outcome: str = "ok"
    reuse: str = ""
    """The ``x-kvferry`` header as the client saw it."""


# --- nodes ----------------------------------------------------------------------------------


class NodeJoined(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A node begins an unbroken record; the first event of each epoch."""

    incarnation: str
    epoch: int
    address: str
    """``host:port`` of the node's peer server."""
    block_size: int
    components: dict[str, str] = {}
    """What the space's fingerprint is made of, by name."""
    backends: tuple[str, ...] = ()
    blocks: int = 0
    """KV blocks in the node's pool."""
    block_bytes: int = 0
    """Bytes of one block over all layers and ranks."""
    warnings: tuple[str, ...] = ()
    """What limits reuse on this node, in plain words with the cure."""
    version: str = ""
    role: str = ""


class NodeClosed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A clean stop: the node's offers and leases end."""

    incarnation: str


class Gap(Event, frozen=True, kw_only=True, omit_defaults=True):
    """``count`` events of a lane were handed over and not stored."""

    lane: str
    count: int
    why: str = "overflow"


class OpenTransfer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A transfer that an inventory lists as still open at its target."""

    transfer: str
    request: str
    source: str
    wanted: int = 0
    granted: int = 0


class Inventory(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A part of what a node holds, after a gap. Applied as a whole at ``last``."""

    part: int
    last: bool
    offers: tuple[Retained, ...] = ()
    transfers: tuple[OpenTransfer, ...] = ()


class LinkProbed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A short measurement of a link when two nodes met."""

    peer: str
    backend: str
    gb_per_s: float
    floor_ms: float


# --- coordinator ----------------------------------------------------------------------------


class LeaderElected(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A coordinator took over; lower terms are void from here on."""

    term: int
    replica: str


class NodeLeft(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The leader declares a silent node gone: its offers and open transfers end."""

    term: int
    node: str
    incarnation: str
    epoch: int
    why: str = "silent"


class PolicySet(Event, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's policy. ``node`` empty means the whole space."""

    term: int
    version: int
    mode: str
    """``on``, ``paused`` or ``observe``."""
    node: str = ""
    who: str = ""


class Checkpoint(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot of the state at ``position`` is stored under ``object``."""

    term: int
    position: int
    digest: str
    fingerprint: str
    object: str


AnyEvent: TypeAlias = (
    Produced
    | Retained
    | Evicted
    | Requested
    | Transferred
    | TransferFailed
    | PinEnded
    | RequestEnded
    | TurnEnded
    | NodeJoined
    | NodeClosed
    | Gap
    | Inventory
    | LinkProbed
    | LeaderElected
    | NodeLeft
    | PolicySet
    | Checkpoint
)

SCHEMAS: dict[str, tuple[int, type[Event]]] = {
    "produced": (1, Produced),
    "retained": (1, Retained),
    "evicted": (1, Evicted),
    "requested": (1, Requested),
    "transferred": (1, Transferred),
    "transfer_failed": (1, TransferFailed),
    "pin_ended": (1, PinEnded),
    "request_ended": (1, RequestEnded),
    "turn_ended": (1, TurnEnded),
    "node_joined": (1, NodeJoined),
    "node_closed": (1, NodeClosed),
    "gap": (1, Gap),
    "inventory": (1, Inventory),
    "link_probed": (1, LinkProbed),
    "leader_elected": (1, LeaderElected),
    "node_left": (1, NodeLeft),
    "policy_set": (1, PolicySet),
    "checkpoint": (1, Checkpoint),
}
"""Name to (version now written, type)."""

NAMES: dict[type[Event], str] = {kind: name for name, (_, kind) in SCHEMAS.items()}

FACTS, BLOCKS, COORD = "facts", "blocks", "coord"
"""The lanes: a node's decisions, a node's detail, and the leader's decisions for a space."""
