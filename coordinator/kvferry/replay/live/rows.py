"""What a frame of the live view holds, as plain rows with stable names."""

from __future__ import annotations

from typing import Any

import msgspec


class Use(msgspec.Struct):
    """Runs that a node keeps in one tier; blocks that several share count once for each."""

    runs: int = 0
    blocks: int = 0


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node. ``cache`` is offered without a lease; ``hbm`` and ``host`` are leases."""

    node: str
    role: str
    status: str
    why: str
    mode: str
    silent_s: float | None
    """Since its last heartbeat; None where none was heard."""
    blocks: int
    host_blocks: int
    cache: Use
    hbm: Use
    host: Use
    receives: int
    """Open transfers to it."""
    sends: int
    """Open transfers from it."""
    keeps: dict[str, Any]
    """How it keeps under what is set: :func:`kvferry.replay.retained.keeps`."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The last seconds of a space."""

    span_s: int
    seen_s: float
    """How much of the span was watched or folded; less than it only soon after the start of a
    ledger that kept no more."""
    requests: int
    requests_per_s: float
    prompt_tokens: int
    local_tokens: int
    pulled_tokens: int
    computed_tokens: int
    prompt_sent: int
    """Prompt tokens whose KV was sent to TileRT nodes; no part of the four above."""
    hit_share: float | None
    """Of the prompt tokens, those that were not computed again; None without a request."""
    transfers: int
    failed: int
    bytes: int
    bytes_per_s: float


class LinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One link (source, target and backend) that moves something, or did in the last minute."""

    link: str
    open: int
    bytes_per_s: float
    """Over the last ten seconds."""
    transfers: int
    """In the last minute."""
    learned_bytes_per_s: float
    """While it moves, as the ledger has taught; 0 while it is not known."""


class Moving(msgspec.Struct, frozen=True, kw_only=True):
    """One open transfer."""

    transfer: str
    request: str
    source: str
    target: str
    backend: str
    blocks: int
    age_ms: int


class MissRow(msgspec.Struct, frozen=True, kw_only=True):
    """A cause for which requests reused nothing."""

    cause: str
    lately: int
    """In the longest span."""
    total: int


class SpaceFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One space."""

    space: str
    mode: str
    leader: str
    term: int
    retention: dict[str, int | float]
    """What an operator has set of how nodes keep, by the names of the connector's options."""
    retentions: dict[str, dict[str, int | float]]
    """The same of single nodes, by name."""
    nodes: tuple[NodeRow, ...]
    windows: tuple[Window, ...]
    moving_total: int
    moving: tuple[Moving, ...]
    links: tuple[LinkRow, ...]
    misses: tuple[MissRow, ...]


class SlotRow(msgspec.Struct, frozen=True, kw_only=True):
    """The slot of one TileRT decode node."""

    node: str
    phase: str
    """``free``, ``granted``, ``decoding``; ``unsure`` until the node was idle long enough."""
    drained: bool
    holder: str
    """The router that has it; empty where nobody does."""
    request: str
    session: str
    fence: int
    """Of the present lease or of the last one; 0 before the first."""
    age_ms: int
    """How long it is in this phase."""
    why: str
    """What the last change said."""
    last: str
    """How the last lease ended; empty before the first end."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One coordinator that makes itself heard."""

    replica: str
    leader: bool
    term: int
    lag_messages: int
    silent_s: float


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What a frame needs to know that no fold says."""

    now_ms: int
    """The server's present."""
    since_ms: int = 0
    """From when on everything was seen; 0 for the ledger's beginning."""
    last_seq: int = 0
    folded_ms: int = 0
    """Store time of the last folded message."""
    trouble: str = ""
    """Why the ledger cannot be read at the moment."""
    replicas: tuple[Replica, ...] = ()
    silent_s: dict[tuple[str, str], float] = {}
    """By (space, node)."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown at one moment."""

    time_ms: int
    position: int
    last_seq: int
    lag_messages: int
    lag_ms: int
    """Age of the last message that is in the frame, while there are later ones; else 0."""
    trouble: str
    replicas: tuple[Replica, ...]
    spaces: tuple[SpaceFrame, ...]
    slots: tuple[SlotRow, ...]
    """Decode nodes of TileRT; those that are not free come first, the longest so before others."""
    routers: tuple[str, ...]
    turns: int
    quarantined: int
