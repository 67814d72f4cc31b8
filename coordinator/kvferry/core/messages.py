"""What nodes and coordinator say to each other outside the ledger, and on which subjects."""

from __future__ import annotations

import msgspec

from kvferry.core.retention_gaps import GapModel
from kvferry.core.retention_settings import AS_STARTED, RetentionSettings

# Bus subjects. None of them is stored by a stream: the streams take ``kvf.*.*.facts``,
# ``kvf.*.*.blocks`` and ``kvf.*.coord`` only.
ANNOUNCE_SUBJECT = "kvfbus.coordinator"
"""Coordinators announce themselves to nodes here once a second."""

REPLICAS_SUBJECT = "kvfbus.replicas"
"""Coordinators announce themselves to each other here several times a second. Nodes do not listen:
each message interrupts an engine's Python for a moment."""


def plan_subject(replica: str) -> str:
    """Where one replica answers plans; no queue group, for it would feed a frozen one."""
    return f"kvfbus.plan.{replica}"


def query_subject(replica: str) -> str:
    """Where one replica answers the CLI (status, policy)."""
    return f"kvfbus.query.{replica}"


def heartbeat_subject(space: str, node: str) -> str:
    return f"kvfbus.heartbeat.{space}.{node}"


HEARTBEATS = "kvfbus.heartbeat.>"


def control_subject(space: str, node: str) -> str:
    """Where a node listens for :class:`Control`."""
    return f"kvfbus.control.{space}.{node}"


def held_subject(space: str) -> str:
    """Where the leader tells nodes what is held in their space (:class:`Held`)."""
    return f"kvfbus.held.{space}"


def advice_subject(space: str) -> str:
    """Where the leader gives nodes advice on what to keep (:class:`Advice`)."""
    return f"kvfbus.advice.{space}"


class Announce(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator is alive."""

    replica: str
    term: int
    leader: bool
    position: int
    """Stream sequence that its state has reached."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A node is alive. ``gauges`` are for ``status`` only; no decision reads them."""

    node: str
    space: str
    incarnation: str
    epoch: int
    gauges: dict[str, float] = {}


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Coordinator to node, and operator to node.

    ``verb``: ``resync`` (begin a new epoch with an inventory), ``policy`` (``mode`` and
    ``retention`` are in force; repeated with every heartbeat that is answered, so that a lost
    message heals), ``duplicate`` (a later process owns the name: stop publishing and say so),
    ``tell`` (whoever audits asks what the node holds; answered with :class:`Holdings`).
    """

    verb: str
    mode: str = ""
    version: int = 0
    retention: RetentionSettings = AS_STARTED
    """With ``policy``: what is set of how the node keeps, over what its engine was started with."""
    why: str = ""
    incarnation: str = ""
    """Which process life of the name is meant; empty for all. Two processes of one name hear the
    same subject, so that ``duplicate`` must say which of them is to stop."""
    after: str = ""
    """With ``tell``: where the last answer ended (:attr:`Holdings.upto`); empty for the first."""


class HeldOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An offer or lease as its node knows it."""

    offer: str
    rev: int
    tier: str
    count: int
    tail: bytes = b""
    """Short hash of its last block; empty where an eviction shortened it."""
    lent: int = -1
    """How many of its blocks are really there: those that the engine would grant now, those that a
    lease holds, each compared with what the engine's pool has, or those in the host tier's slots.
    -1 where that cannot be told, as while a change is on its way."""


class HeldLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that the engine itself holds, whatever was recorded."""

    lease: str
    blocks: int


class HeldPin(msgspec.Struct, frozen=True, kw_only=True):
    """A pin that stands at its source."""

    transfer: str
    target: str
    blocks: int


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """A node to whoever audits: a page of what it holds, exact at one position of its own record.

    Offers and transfers are paged by :func:`held_key`, in its order. Each page is by itself exact,
    at a position of its own, so that a busy node need not keep a copy for who asks.
    """

    space: str
    node: str
    incarnation: str
    epoch: int
    seq: int
    """Sequence of the last event of the facts lane that is in what is told."""
    after: str
    """The page holds what comes after this key ..."""
    upto: str
    """... up to and including this one; empty where nothing comes after it."""
    offers: tuple[HeldOffer, ...] = ()
    transfers: tuple[str, ...] = ()
    """Ids of transfers to this node that are open."""
    pins: tuple[HeldPin, ...] = ()
    """Pins that stand here, on the first page, as far as the node can tell."""
    leases: tuple[HeldLease, ...] = ()
    """Leases that its engine holds, on the first page, as far as the node can tell."""


def held_key(kind: str, name: str) -> str:
    """Where an ``offer`` or ``transfer`` stands among all that a node holds."""
    return f"{kind}:{name}"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Leader to all nodes of a space: which sampled hashes some node offers.

    Spares a request that shares nothing the way to a plan. A series begins with ``number`` 0 and
    ``bits``; each later number adds some. Repeated without news at least twice a second, so that a
    node notices what it missed, and silence.
    """

    replica: str
    term: int
    series: str
    number: int
    position: int
    """Stream sequence up to which every offer is in."""
    bits: bytes = b""
    """A :class:`kvferry.core.held.HeldFilter`; with ``number`` 0 only."""
    added: bytes = b""
    """Sampled short hashes, as :func:`kvferry.ids.short_hashes` packs, that are offered now."""


SAVED_UNKNOWN = (40.0, 0.0)
"""What a hit spares while nothing was learned: about that of 8 B parameters on one GPU."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Leader to all nodes of a space: what its sessions are like. A node without it has a prior."""

    replica: str
    term: int
    gaps: GapModel
    saved: tuple[float, float] = SAVED_UNKNOWN
    """What a hit spares: milliseconds per 1,000 tokens, and what each further 1,000 add to that."""
    pays_from: dict[str, int] = {}
    """By ``source>target``, where short prefixes are faster computed than moved: the shortest in
    tokens that is worth moving."""
    host_blocks: dict[str, int] = {}
    """Size of the host tier of each node that has one, so that all come to the same keeper."""
    roles: dict[str, str] = {}
    """Roles of these nodes, where they have one."""
    position: int = 0
    """Stream sequence up to which the facts are in."""
    links: dict[str, tuple[float, float]] = {}
    """By ``source>target`` what a move takes: milliseconds even of the smallest, and those that
    each 1,000 tokens add. Pulls by a hint are recorded with it, and with :attr:`weighs` weighed."""
    computing: dict[str, tuple[float, float]] = {}
    """By node what computing takes beyond its fixed part: milliseconds per 1,000 tokens, and per
    million pairs of a token and one before it."""
    weighs: bool = False
    """A node that has a part of what a hint names is to weigh whether the rest is worth moving."""


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where could this prompt's prefix come from?"""

    space: str
    node: str
    """Who asks; never proposed as a source."""
    hashes: bytes
    """Sampled short hashes of the prompt's chain, as :func:`kvferry.ids.short_hashes` packs."""
    stride: int
    """Blocks between samples."""
    block_size: int
    prompt_tokens: int
    request: str = ""
    """Who wants it; empty from nodes that cannot wait."""
    waited_ms: float = 0.0
    """For how long it has waited as it was told to."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A node that offers a prefix of the prompt, as far as the index knows."""

    node: str
    address: str
    incarnation: str
    blocks: int
    """At least so many blocks from the prompt's first; the pin gives the exact end."""
    tier: str = "cache"
    predicted_ms: float = 0.0
    """To move these blocks, ``queue_ms`` included; 0 while it is not known."""
    recompute_ms: float = 0.0
    """To compute their tokens; 0 while it is not known."""
    queue_ms: float = 0.0
    """Part of ``predicted_ms``: because of what the two nodes move already."""
    doubt: float = 0.0
    """Relative standard error of ``predicted_ms``."""
    limit: int = 0
    """A trial of a link that is thought too dear: no more than the first so many blocks are to be
    pulled. 0: all that the source grants."""


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Best candidates first; none means recompute, and ``miss`` says why."""

    replica: str
    candidates: tuple[Candidate, ...] = ()
    observed: tuple[Candidate, ...] = ()
    """In observe mode: what would have been candidates. Nobody pulls from these."""
    dear: tuple[Candidate, ...] = ()
    """With the miss ``too_dear``: the best of those that were, with its numbers."""
    recompute_ms: float = 0.0
    prefill_ms: float = 0.0
    """To compute the whole prompt; 0 while it is not known."""
    wait_ms: float = 0.0
    """Above 0: ask again after so long instead of pulling now, for it will be over sooner then.
    Who cannot wait goes by the candidates."""
    miss: str = ""
    mode: str = "on"
    position: int = 0


ENCODER = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Any of the messages above as msgpack."""
    return ENCODER.encode(message)
