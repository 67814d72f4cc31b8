"""Who holds which chain of one space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kvferry.ids import SHORT_BYTES
from kvferry.index.answer import Held, Usable, joined, whole
from kvferry.index.forest import Branch, End, Forest, Holder


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
        self._ends: dict[str, tuple[Branch | None, int, int, Holder]] = {}
        """Where each offer is listed and for whom; nowhere if nothing of it can be."""
        self._holders: dict[tuple[str, str], Holder] = {}

    def put(self, offer_id: str, offer: Offered, stride: int) -> bytes:
        """List an offer, or what became of it; gives its samples that nobody held, joined.

        Args:
            offer_id: the offer's name; a known one is replaced.
            offer: what it lists now.
            stride: blocks between two sampled hashes on that node.
        """
        who = offer.node, offer.tier
        holder = self._holders.get(who)
        if holder is None:
            holder = self._holders[who] = Holder(*who)
        # Before the old one goes, so that neither branch nor holder is given up in between.
        holder.offers += 1
        known = self._forest.bytes
        end = self._list(offer, stride, holder)
        new = self._forest.bytes - known
        if offer_id in self._ends:
            self.drop(offer_id)
        self._ends[offer_id] = (None, 0, 0, holder) if end is None else (*end, holder)
        # What is known of a run is where it begins, so what is new ends it.
        return offer.hashes[-new:] if new else b""

    def drop(self, offer_id: str) -> None:
        """Forget one offer; an unknown one is ignored."""
        end = self._ends.pop(offer_id, None)
        if end is None:
            return
        branch, reach, start, holder = end
        if branch is not None:
            self._forest.remove(branch, reach, start, holder)
        holder.offers -= 1
        if not holder.offers:
            del self._holders[holder.node, holder.tier]

    def holders(self, chain: bytes, *, usable: Usable | None = None, limit: int = 0) -> list[Held]:
        """The nodes that hold a prefix of a chain, longest first, then by name.

        Args:
            chain: sampled short hashes, joined, of the chain from its first block on.
            usable: asked once for each node that holds something; without it all are.
            limit: at most so many, of those that hold most; 0 for all. Of more that hold equally
                much, the chain chooses, so that not all prompts go to the same few.

        Returns:
            At least one sample each.
        """
        path = self._forest.path(chain, 0)
        if not path:
            return []
        later = [
            further
            for start in self._forest.starts()
            if 0 < start < len(chain) and (further := self._forest.path(chain, start))
        ]
        if later:
            found = joined(path, later, usable)
        else:
            turn = int.from_bytes(chain[-SHORT_BYTES:], "big")
            found = whole(path, usable, limit, turn)
        return found[:limit] if limit else found

    def offers(self) -> Mapping[str, frozenset[str]]:
        """Ids of the listed offers by node."""
        found: dict[str, set[str]] = {}
        for offer_id, (*_, holder) in self._ends.items():
            found.setdefault(holder.node, set()).add(offer_id)
        return {node: frozenset(ids) for node, ids in found.items()}

    def samples(self) -> int:
        """Distinct sampled hashes that somebody holds."""
        return self._forest.bytes // SHORT_BYTES

    def stretches(self) -> list[bytes]:
        """All of them, joined as they lie in their chains, each once."""
        return self._forest.stretches()

    def _list(self, offer: Offered, stride: int, holder: Holder) -> End | None:
        start, between = divmod(offer.base, stride)
        # Samples that are counted from a place between two are samples of no chain asked for.
        if between or not offer.hashes:
            return None
        return self._forest.add(offer.hashes, start * SHORT_BYTES, holder)
