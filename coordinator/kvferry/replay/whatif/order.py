"""Events of several nodes in the order in which they happened.

Nodes tell ten times a second, so that what one read may be stored before what another one wrote.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

LATE_MS = 2_000
"""An event is stored no later than so long after it happened, but for a node that was cut off."""
SKEW_MS = 60_000
"""A writer whose clock is further off than this from the server's is not believed."""


class InOrder:
    """Calls what is due in the order of the writers' clocks."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Callable[[float], None]]] = []
        self._count = 0
        self._now_ms = 0

    def add(self, wall_ms: int, stored_ms: int, act: Callable[[float], None]) -> None:
        """Have ``act`` called with its time in seconds.

        Args:
            wall_ms: of the writer.
            stored_ms: of the server; taken where the writer's is out of the question.
        """
        when_ms = wall_ms if abs(wall_ms - stored_ms) <= SKEW_MS else stored_ms
        self._count += 1
        heapq.heappush(self._due, (when_ms, self._count, act))

    def release(self, stored_ms: int | None = None) -> None:
        """Call what nothing can come before any more; without a time, everything."""
        while self._due and (stored_ms is None or self._due[0][0] <= stored_ms - LATE_MS):
            when_ms, _, act = heapq.heappop(self._due)
            self._now_ms = max(self._now_ms, when_ms)
            act(self._now_ms / 1_000)
