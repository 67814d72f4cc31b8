"""Who holds which chain of one space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from kvferry.ids import SHORT_BYTES, pack_short
from kvferry.index.answer import Held, Usable, joined, whole
from kvferry.index.forest import Branch, Forest


class Offered(Protocol):
    """What the index needs to know of an offer; :class:`kvferry.core.state.OfferState` has it."""

    @property
    def node(self) -> str: ...

    @property
    def tier(self) -> str: ...

    @property
    def base(self) -> int:
        """Index of the first block that ``hashes`` lists."""
        ...

    @property
    def hashes(self) -> bytes:
        """Sampled short hashes, joined, of the blocks from ``base`` on."""
        ...


class _End(NamedTuple):
    """Where the index lists an offer."""

    branch: Branch | None
    """None for an offer of which nothing can be listed."""
    reach: int
    holder: int


class Residency:
    """The offers of one space by node and tier, for longest-prefix questions.

    A hint, never a promise: the source decides when it is pinned. Not thread-safe; the projector
    writes and the plan service reads on one event loop.

    Offers that begin at block 0 hold everything up to a sample that they list. Those that begin
    later promise nothing about the blocks before them, so they only ever extend what their node
    holds otherwise, in whichever tier.
    """

    def __init__(self) -> None:
        self._forest = Forest()
        self._ends: dict[str, _End] = {}
        self._holders: dict[tuple[str, str], int] = {}
        """(node, tier) to a number for as long as it offers something."""
        self._who: dict[int, tuple[str, str]] = {}
        self._listed: dict[int, int] = {}
        """Offers by holder."""
        self._numbers = 0

    def put(self, offer_id: str, offer: Offered, stride: int) -> None:
        """List an offer, or what became of it.

        Args:
            offer_id: the offer's name; a known one is replaced.
            offer: what it lists now.
            stride: blocks between two sampled hashes on that node.
        """
        holder = self._holder(offer.node, offer.tier)
        start, between = divmod(offer.base, stride)
        end = None
        # Samples counted from between two of the grid are no sample of any chain that is asked for.
        if offer.hashes and not between:
            end = self._forest.add(offer.hashes, start * SHORT_BYTES, holder)
        # Counted before the old one goes: its holder must not be forgotten in between.
        self._listed[holder] = self._listed.get(holder, 0) + 1
        self.drop(offer_id)
        self._ends[offer_id] = _End(None, 0, holder) if end is None else _End(*end, holder)

    def drop(self, offer_id: str) -> None:
        """Forget one offer; an unknown one is ignored."""
        end = self._ends.pop(offer_id, None)
        if end is None:
            return
        if end.branch is not None:
            self._forest.remove(end.branch, end.reach, end.holder)
        self._listed[end.holder] -= 1
        if not self._listed[end.holder]:
            del self._listed[end.holder]
            del self._holders[self._who.pop(end.holder)]

    def holders(self, chain: bytes, *, usable: Usable | None = None, limit: int = 0) -> list[Held]:
        """The nodes that hold a prefix of a chain, longest first, then by name.

        Args:
            chain: sampled short hashes, joined, of the chain from its first block on.
            usable: asked once for each node that holds something; without it all are.
            limit: stop looking for shorter prefixes once so many nodes are found; 0 for never.

        Returns:
            At least one sample each.
        """
        path = self._forest.path(chain, 0)
        if not path:
            return []
        later = [
            further
            for start in self._forest.starts
            if 0 < start < len(chain) and (further := self._forest.path(chain, start))
        ]
        if later:
            return joined(path, later, self._who, usable)
        return whole(path, self._who, usable, limit)

    def lookup(self, hashes: Sequence[int], exclude: str = "") -> list[tuple[str, int]]:
        """:meth:`holders` of a chain of integers: (node, samples), without ``exclude``."""
        found = self.holders(pack_short(hashes), usable=lambda node: node != exclude)
        return [(held.node, held.samples) for held in found]

    def offers(self) -> Mapping[str, frozenset[str]]:
        """Ids of the listed offers by node."""
        found: dict[str, set[str]] = {}
        for offer_id, end in self._ends.items():
            found.setdefault(self._who[end.holder][0], set()).add(offer_id)
        return {node: frozenset(ids) for node, ids in found.items()}

    def samples(self) -> int:
        """Distinct sampled hashes that somebody holds."""
        return self._forest.bytes // SHORT_BYTES

    def _holder(self, node: str, tier: str) -> int:
        holder = self._holders.get((node, tier))
        if holder is None:
            self._numbers += 1
            holder = self._holders[node, tier] = self._numbers
            self._who[holder] = (node, tier)
        return holder
