"""Which beginnings of prompts were there before, how long ago, and what keeping them takes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

CHUNKS_MAX = 1_000_000
"""Chunks that are remembered; the longest unused are forgotten."""


class Chunks:
    """Every chunk of every prompt with its last use.

    Args:
        keep_s: ascending times after its last use at which a chunk would be dropped.
        chunks_max: how many are remembered.

    Attributes:
        forgotten: chunks that were dropped because there were too many.
    """

    def __init__(self, keep_s: Sequence[float], chunks_max: int = CHUNKS_MAX) -> None:
        self._keep_s = tuple(keep_s)
        self._max = chunks_max
        self._used_s: OrderedDict[int, float] = OrderedDict()
        self._held_s = [0.0] * len(self._keep_s)
        self.forgotten = 0

    def use(self, at_s: float, chain: Sequence[int]) -> tuple[list[int], int]:
        """A prompt comes.

        Args:
            at_s: when; not before the last one.
            chain: names of its chunks.

        Returns:
            How many of its first chunks are still there for each of the times, and how many if
            nothing is ever dropped.
        """
        found, known, whole = [0] * len(self._keep_s), 0, True
        for place, chunk in enumerate(chain):
            used_s = self._used_s.pop(chunk, None)
            self._used_s[chunk] = at_s
            if used_s is None:
                whole = False
                continue
            age_s = at_s - used_s
            self._hold(age_s)
            if whole:
                known = place + 1
                for row, keep_s in enumerate(self._keep_s):
                    if age_s <= keep_s and found[row] == place:
                        found[row] = place + 1
        while len(self._used_s) > self._max:
            _, used_s = self._used_s.popitem(last=False)
            self._hold(at_s - used_s)
            self.forgotten += 1
        return found, known

    def held(self, end_s: float) -> list[float]:
        """Chunk-seconds until ``end_s`` for each of the times; ask once, at the end."""
        for used_s in self._used_s.values():
            self._hold(end_s - used_s)
        self._used_s.clear()
        return list(self._held_s)

    def _hold(self, for_s: float) -> None:
        for row, keep_s in enumerate(self._keep_s):
            self._held_s[row] += min(for_s, keep_s)
