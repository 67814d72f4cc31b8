"""Who holds which chain of one space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kvferry.ids import unpack_short
from kvferry.index.holdings import Holdings


class Offered(Protocol):
    """What the index needs to know of an offer; :class:`kvferry.core.state.OfferState` has it."""

    @property
    def node(self) -> str: ...

    @property
    def base(self) -> int:
        """Index of the first block that ``hashes`` lists."""
        ...

    @property
    def hashes(self) -> bytes:
        """Sampled short hashes, joined, of the blocks from ``base`` on."""
        ...


class _Listed:
    """The part of an offer that is indexed."""

    __slots__ = ("hashes", "whole")

    def __init__(self, hashes: tuple[int, ...], whole: bool) -> None:
        self.hashes = hashes
        self.whole = whole


class _NodeEntry:
    __slots__ = ("holdings", "offers")

    def __init__(self) -> None:
        self.holdings = Holdings()
        self.offers: dict[str, _Listed] = {}


class Residency:
    """The offers of one space by node, for longest-prefix questions.

    A hint, never a promise: the source decides when it is pinned. Not thread-safe; the projector
    writes and the plan service reads on one event loop.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeEntry] = {}
        self._node_of: dict[str, str] = {}

    def put(self, offer_id: str, offer: Offered, stride: int) -> None:
        """List an offer, or what became of it.

        Args:
            offer_id: the offer's name; a known one is replaced.
            offer: what it lists now.
            stride: blocks between two sampled hashes on that node.
        """
        if self._node_of.get(offer_id, offer.node) != offer.node:
            self.drop(offer_id)
        self._node_of[offer_id] = offer.node
        entry = self._nodes.get(offer.node)
        if entry is None:
            entry = self._nodes[offer.node] = _NodeEntry()
        new = _listed(offer, stride)
        old = entry.offers.get(offer_id)
        entry.offers[offer_id] = new
        if old is None:
            entry.holdings.add(new.hashes, whole=new.whole)
        else:
            _replace(entry.holdings, old, new)

    def drop(self, offer_id: str) -> None:
        """Forget one offer; an unknown one is ignored."""
        node = self._node_of.pop(offer_id, None)
        if node is None:
            return
        entry = self._nodes[node]
        old = entry.offers.pop(offer_id)
        entry.holdings.remove(old.hashes, whole=old.whole)
        if not entry.offers:
            del self._nodes[node]

    def lookup(self, hashes: Sequence[int], exclude: str = "") -> list[tuple[str, int]]:
        """The nodes that hold a prefix of a chain, longest first, then by name.

        Args:
            hashes: sampled short hashes of the chain from its first block on.
            exclude: a node that is never an answer: the one that asks.

        Returns:
            (node, samples matched); at least one sample each.
        """
        if not hashes:
            return []
        found = [
            (node, reach)
            for node, entry in self._nodes.items()
            if node != exclude and (reach := entry.holdings.reach(hashes))
        ]
        found.sort(key=lambda item: (-item[1], item[0]))
        return found

    def offers(self) -> Mapping[str, frozenset[str]]:
        """Ids of the listed offers by node."""
        return {node: frozenset(entry.offers) for node, entry in self._nodes.items()}

    def samples(self) -> int:
        """Distinct sampled hashes, summed over the nodes."""
        return sum(len(entry.holdings) for entry in self._nodes.values())


def _listed(offer: Offered, stride: int) -> _Listed:
    """What can be answered from an offer.

    The first sample of an offer that begins between two samples also covers blocks which are not
    part of it. Nothing then connects its samples to a prefix, so none is listed.
    """
    whole = offer.base == 0
    if not whole and offer.base % stride:
        return _Listed((), whole)
    return _Listed(unpack_short(offer.hashes), whole)


def _replace(holdings: Holdings, old: _Listed, new: _Listed) -> None:
    """Change what one offer lists; growing and shrinking at the end touch only the difference."""
    if old.whole == new.whole:
        shared = min(len(old.hashes), len(new.hashes))
        if old.hashes[:shared] == new.hashes[:shared]:
            kept = new.hashes[:shared]
            rest = set(old.hashes[shared:] + new.hashes[shared:])
            if rest.isdisjoint(kept):
                holdings.add(new.hashes[shared:], whole=new.whole)
                holdings.remove(old.hashes[shared:], whole=old.whole)
                return
    holdings.add(new.hashes, whole=new.whole)
    holdings.remove(old.hashes, whole=old.whole)
