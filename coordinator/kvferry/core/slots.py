"""The one decode slot of a TileRT node, as data: who may use the node, and how that ends.

A TileRT decode server has one receive buffer and no fencing of its own: two requests on one node
may end in an answer computed from the other's prompt. So a node is lent to one request at a time,
from before its prefill until its decode's reply, a confirmed cancel, or until the node was idle for
longer than TileRT itself waits for anything. A lease never ends on a deadline of ours alone: the
request may still be on its way to the node.

The table maps (phase, change) to the next phase; what is not in it is illegal.
"""

from __future__ import annotations

import msgspec

from kvferry.core.transfer import Table

UNKNOWN, FREE, GRANTED, DECODING, UNSURE = "unknown", "free", "granted", "decoding", "unsure"
SLOT_PHASES = (UNKNOWN, FREE, GRANTED, DECODING, UNSURE)
"""``unsure``: nobody may use the node until it was idle long enough. Its last user lost sight of
it, or a part of the ledger is gone."""
HELD = (GRANTED, DECODING)
"""Phases in which a request has the slot to itself."""

REGISTERED, FOUND = "registered", "found"
"""A node was named by a router: for the first time or with another address; and ``found`` where the
ledger lost its beginning, so that somebody may be using it."""
DRAINED, OPENED = "drained", "opened"
"""An operator takes a node out of the pool, and puts it back. A lease that runs goes on."""
GRANT, CONFIRMED, ABANDONED = "granted", "confirmed", "abandoned"
"""A request got the slot; its decoding began; its router does not know how it ended."""
REPLIED, CANCELLED, REFUSED, IDLE = "replied", "cancelled", "refused_before_admission", "idle"
ENDS = (REPLIED, CANCELLED, REFUSED, IDLE)
"""How a lease ends. ``replied``: decode's reply came to its end. ``cancelled``: the node confirmed
``/pd/cancel``. ``refused_before_admission``: nothing was sent to the node, nor will be. ``idle``:
its holder was silent for longer than TileRT waits, and the node says that it is idle."""
SLOT_CHANGES = (REGISTERED, FOUND, DRAINED, OPENED, GRANT, CONFIRMED, ABANDONED, *ENDS)

_KNOWN = (FREE, GRANTED, DECODING, UNSURE)

SLOT_TABLE: Table = {
    (UNKNOWN, REGISTERED): FREE,
    (UNKNOWN, FOUND): UNSURE,
    (FREE, REGISTERED): FREE,  # another address; never while somebody may use the old one
    **{(phase, change): phase for phase in _KNOWN for change in (DRAINED, OPENED)},
    (FREE, GRANT): GRANTED,
    (GRANTED, CONFIRMED): DECODING,
    (GRANTED, REFUSED): FREE,  # not once it decodes: then it was admitted
    **{(phase, end): FREE for phase in HELD for end in (REPLIED, CANCELLED, IDLE)},
    **{(phase, ABANDONED): UNSURE for phase in HELD},
    # Its user may still hear from the node after all.
    **{(UNSURE, end): FREE for end in (REPLIED, CANCELLED, IDLE)},
}

IDLE_LIMIT_MS = 120_000
"""How long TileRT keeps a slot whose sender went silent, and lets ``/pd/decode`` wait for KV."""
SURE_SHARE = 1 / 8
"""Of the idle limit: for so long after its last acknowledged sign of life a holder may act."""
SEND_SHARE = 3 / 4
"""Of the idle limit: for so long after it saw the request prefill may write to the node. Together
with :data:`SURE_SHARE` less than the limit, so that nothing is written for a lease that ended."""


class SlotNode(msgspec.Struct, frozen=True, kw_only=True):
    """A TileRT decode node as routers name it. All routers must give it the same name."""

    name: str
    http: str
    """Its decode server, for example ``http://10.0.0.7:5557``."""
    control: str
    """``host:port`` of its receive server."""
    profile: str = ""
    """Of TileRT: ``glm5``, ``glm5_2``, ``dsv32``."""
    idle_limit_ms: int = IDLE_LIMIT_MS
    """TileRT's own limits. Never below what the node was started with."""

    @property
    def sure_s(self) -> float:
        """How long a holder may act after its last acknowledged sign of life."""
        return self.idle_limit_ms / 1000 * SURE_SHARE

    @property
    def send_within_s(self) -> float:
        """How long after it saw the request prefill may begin and go on writing to the node."""
        return self.idle_limit_ms / 1000 * SEND_SHARE
