"""What happened to blocks: produced, retained, evicted."""

from __future__ import annotations

from kvferry.core.events.base import Event


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
    why: str = ""
    """What a lease is for: ``handover`` (another engine is about to read it), ``retain`` (the
    client asked), ``expected`` (its next turn is likely and memory is short)."""
    tenant: str = ""
    """Tag of the ``cache_salt`` that the blocks were made under, as ``requested`` has it; empty
    without a salt. Older records have none for blocks in the host tier."""


class Evicted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A run is no longer offered from block ``keep`` on; ``keep`` 0 ends the offer.

    ``reason``: ``reuse`` (the engine needed the memory), ``expired``, ``pressure``,
    ``superseded``, ``session_end``, ``node_left``, ``cleared``, ``paused``, ``damaged`` (a block
    in the host tier was not what had been copied there).
    In the blocks lane, with ``offer`` empty, it counts the engine's own cache evictions.
    """

    offer: str
    rev: int
    keep: int
    reason: str
    count: int = 0
    """Blocks that this event takes away."""
    superseded_by: str = ""
