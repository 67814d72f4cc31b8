"""What one node offers of a space, as counted sets of sampled short hashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Holdings:
    """The sampled hashes that a node's offers list, and how far into a chain they reach.

    A chain hash commits to every block before it. So an offer that begins at block 0 and lists a
    hash holds everything before that hash too, and so does the union of such offers: ``hash i is
    held`` can only change from true to false along a chain, which makes bisection right. Offers
    that begin later promise nothing about the blocks before them. They are kept apart and only
    ever extend an answer sample by sample, so a hole ends the answer.

    One set entry per hash; a dictionary entry only for what several offers list.
    """

    __slots__ = ("_also", "_later", "_whole")

    def __init__(self) -> None:
        self._whole: set[int] = set()
        self._also: dict[int, int] = {}
        self._later: dict[int, int] = {}

    def __len__(self) -> int:
        """Distinct hashes."""
        return len(self._whole) + len(self._later.keys() - self._whole)

    def add(self, hashes: Iterable[int], *, whole: bool) -> None:
        """Count one more offer of these hashes; ``whole`` if it begins at block 0."""
        listed = set(hashes)
        if not whole:
            _count_up(self._later, listed)
            return
        if not self._whole.isdisjoint(listed):
            _count_up(self._also, self._whole & listed)
        self._whole |= listed

    def remove(self, hashes: Iterable[int], *, whole: bool) -> None:
        """Count one offer less; what no offer lists any more is no longer held."""
        listed = set(hashes)
        if not whole:
            _count_down(self._later, listed)
            return
        self._whole -= listed - _count_down(self._also, listed)

    def reach(self, chain: Sequence[int]) -> int:
        """How many of the chain's first hashes are held without a hole."""
        whole = self._whole
        if not chain:
            return 0
        if chain[0] not in whole:
            return 0
        low, high = 1, len(chain)
        if chain[-1] in whole:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if chain[middle - 1] in whole:
                low = middle
            else:
                high = middle
        later = self._later
        if later:
            while low < len(chain) and chain[low] in later:
                low += 1
        return low


def _count_up(counts: dict[int, int], listed: Iterable[int]) -> None:
    for one in listed:
        counts[one] = counts.get(one, 0) + 1


def _count_down(counts: dict[int, int], listed: set[int]) -> set[int]:
    """Lower the counts and return those of ``listed`` that were counted."""
    if not counts:
        return set()
    counted = counts.keys() & listed
    for one in counted:
        left = counts[one] - 1
        if left:
            counts[one] = left
        else:
            del counts[one]
    return counted
