"""What the leading coordinator decided about the slots of TileRT decode nodes."""

from __future__ import annotations

from kvferry.core.events.base import Event


class SlotChanged(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A decode node was named, drained or opened, or its one slot changed hands.

    ``change`` is a word of :data:`kvferry.core.slots.SLOT_CHANGES`.
    """

    term: int
    node: str
    change: str
    fence: int = 0
    """Of the lease. Grows with every lease of the ledger, so that none is like another."""
    holder: str = ""
    """The router process that has the lease."""
    request: str = ""
    """As ``turn_ended`` calls it."""
    session: str = ""
    number: int = 0
    """Of the holder's message that asked for the lease."""
    waited_ms: float = 0.0
    """For how long the request waited for a slot, as its router says."""
    why: str = ""
    who: str = ""
    """Who drained or opened it, or which router named it."""
    http: str = ""
    control: str = ""
    profile: str = ""
    idle_limit_ms: int = 0
    """With ``registered`` and ``found``, as the three before: see
    :class:`kvferry.core.slots.SlotNode`."""
