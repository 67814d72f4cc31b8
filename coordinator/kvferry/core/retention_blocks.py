"""Which blocks are kept how often: leases may share blocks, and a budget counts distinct ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet


class KeptBlocks:
    """Blocks of runs, counted by the runs that keep them. Blocks are opaque numbers."""

    def __init__(self) -> None:
        self._uses: Counter[int] = Counter()

    def __len__(self) -> int:
        """Distinct blocks."""
        return len(self._uses)

    def fresh(self, blocks: Iterable[int]) -> int:
        """How many of these distinct blocks nobody keeps yet."""
        uses = self._uses
        return sum(block not in uses for block in blocks)

    def keep(self, blocks: Iterable[int]) -> None:
        """One more run keeps these distinct blocks."""
        self._uses.update(blocks)

    def release(self, blocks: Iterable[int]) -> int:
        """One run less keeps these blocks; returns how many nobody keeps any more."""
        freed, uses = 0, self._uses
        for block in blocks:
            left = uses[block] - 1
            if left:
                uses[block] = left
            else:
                del uses[block]
                freed += 1
        return freed

    def fewest(
        self, runs: Sequence[tuple[str, Sequence[int]]], needed: int, pinned: AbstractSet[int]
    ) -> tuple[list[str], int]:
        """Runs to give up so that ``needed`` distinct blocks lose their last keeper.

        Args:
            runs: name and blocks, the one to give up first in front.
            needed: distinct blocks.
            pinned: a run that shares a block with these is never given up.

        Returns:
            Names in the order of ``runs``, without those that turn out not to be needed, and how
            many blocks they free. All that may go if they are not enough.
        """
        chosen: list[tuple[str, Sequence[int]]] = []
        left: dict[int, int] = {}
        freed = 0
        for name, blocks in runs:
            if freed >= needed:
                break
            if not pinned.isdisjoint(blocks):
                continue
            chosen.append((name, blocks))
            freed += self._take(blocks, left)
        kept: list[str] = []
        for name, blocks in reversed(chosen):
            frees = sum(left[block] == 0 for block in blocks)
            if frees <= freed - needed:
                freed -= frees
                for block in blocks:
                    left[block] += 1
            else:
                kept.append(name)
        kept.reverse()
        return kept, freed

    def _take(self, blocks: Iterable[int], left: dict[int, int]) -> int:
        freed = 0
        for block in blocks:
            left[block] = left.get(block, self._uses[block]) - 1
            freed += left[block] == 0
        return freed
