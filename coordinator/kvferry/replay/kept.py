"""An offer that may have been what a request wanted, and the lease that kept it for a while."""

from __future__ import annotations

import msgspec

from kvferry.core.events import NodeJoined, Retained
from kvferry.core.leases import LEASE_TIERS
from kvferry.replay.stories import StoryItem
from kvferry.replay.wanted import Wanted


class Lease(msgspec.Struct, kw_only=True):
    """What kept an offer's blocks for a time."""

    name: str
    begun: StoryItem
    why: str
    ended: StoryItem | None = None
    reason: str = ""


class Kept(msgspec.Struct, kw_only=True):
    """An offer, or a lease whose offer is not known."""

    offer: str
    node: str
    space: str
    request: str
    session: str
    tenant: str
    tier: str
    tail: bytes
    count: int
    """Blocks at its longest."""
    now: int
    depths: dict[bytes, int]
    """Hashes of wanted chains that it holds: how many blocks of the chain each commits to."""
    begun: StoryItem
    ended: StoryItem | None = None
    """What ended it, or last shortened it."""
    reason: str = ""
    lease: Lease | None = None
    """The last one on its blocks."""

    def depth(self, wanted: Wanted) -> int:
        """Blocks of the wanted chain that it held; its whole length where no hash tells."""
        if not wanted.hashes:
            return self.count
        return max((self.depths[one] for one in wanted.hashes & self.depths.keys()), default=0)

    def leased_by(self, event: Retained, node: str) -> bool:
        """Whether a lease keeps the blocks that this offers."""
        mine = (self.node, self.request, self.tail) == (node, event.request, event.tail)
        return mine and self.now > 0 and self.tier not in LEASE_TIERS


class Background(msgspec.Struct, kw_only=True):
    """What else of the ledger says why something was not there."""

    joined: dict[tuple[str, str], NodeJoined] = {}
    """By (space, node) what the node said of itself last."""
    first_ms: int = 0
    """Store time of the first message that was read."""
