"""How much went over each link at its busiest."""

from __future__ import annotations

import msgspec

WINDOW_S = 10.0
LINKS_MAX = 4_096
"""Links that are told apart; moves over later ones are not counted."""


class Load(msgspec.Struct):
    """What one link carried."""

    moves: int = 0
    bytes: int = 0
    window: int = -1
    in_window: int = 0
    peak: int = 0
    """Most bytes of any window."""

    def add(self, at_s: float, size: int) -> None:
        """A move ended."""
        window = int(at_s / WINDOW_S)
        if window != self.window:
            self.window, self.in_window = window, 0
        self.moves += 1
        self.bytes += size
        self.in_window += size
        self.peak = max(self.peak, self.in_window)

    @property
    def peak_bytes_s(self) -> float:
        """Average of the busiest window."""
        return self.peak / WINDOW_S


class Loads:
    """All links, by (source, target)."""

    def __init__(self) -> None:
        self._by: dict[tuple[str, str], Load] = {}

    def add(self, source: str, target: str, at_s: float, size: int) -> None:
        """A move ended."""
        load = self._by.get((source, target))
        if load is None:
            if len(self._by) >= LINKS_MAX:
                return
            load = self._by[source, target] = Load()
        load.add(at_s, size)

    def busiest(self) -> list[tuple[tuple[str, str], Load]]:
        """Highest peak first."""
        return sorted(self._by.items(), key=lambda item: (-item[1].peak, item[0]))
