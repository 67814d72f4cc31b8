"""Ranges of a buffer, each owned by one send at a time. Pure arithmetic."""

from __future__ import annotations

import bisect

ALIGN_BYTES = 256


class Arena:
    """Hands out ranges of ``size`` bytes: the lowest that fits. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size)]
        """(start, end) of what nobody owns, in order; ranges that touch are one."""
        self._owned: dict[int, int] = {}

    def take(self, length: int) -> int | None:
        """Where a range of ``length`` bytes begins that is now owned; None while none is free."""
        wanted = -(-max(1, length) // ALIGN_BYTES) * ALIGN_BYTES
        for at, (start, end) in enumerate(self._free):
            if end - start >= wanted:
                self._free[at : at + 1] = [(start + wanted, end)] if end - start > wanted else []
                self._owned[start] = start + wanted
                return start
        return None

    def give(self, start: int) -> None:
        """A range is free again.

        Raises:
            KeyError: nobody owns a range that begins there.
        """
        end = self._owned.pop(start)
        at = bisect.bisect(self._free, (start, end))
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at and self._free[at - 1][1] == start:
            at -= 1
            start = self._free.pop(at)[0]
        self._free.insert(at, (start, end))

    @property
    def owned(self) -> int:
        """How many ranges are owned."""
        return len(self._owned)
