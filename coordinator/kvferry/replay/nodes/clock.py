"""The time of simulated nodes, and what is due in it."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    """Virtual time. What is due at one moment happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Have ``act`` called at ``when_s``, or now if that has passed."""
        self._asked += 1
        heapq.heappush(self._due, (max(when_s, self.now_s), self._asked, act))

    def go_on(self, now_s: float) -> None:
        """It is so late now."""
        while self._due and self._due[0][0] <= now_s:
            self._next()
        self.now_s = max(self.now_s, now_s)

    def run(self) -> None:
        """Until nothing is due any more."""
        while self._due:
            self._next()

    def _next(self) -> None:
        self.now_s, _, act = heapq.heappop(self._due)
        act()
