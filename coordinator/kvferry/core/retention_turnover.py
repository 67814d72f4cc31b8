"""How fast an engine hands out blocks: what its cache will have forgotten after how long."""

from __future__ import annotations

import math


class Turnover:
    """A rate with exponential forgetting. The caller says what time it is.

    Args:
        memory_s: seconds after which an old rate weighs a third.
    """

    def __init__(self, memory_s: float = 10.0) -> None:
        self._memory_s = memory_s
        self._since_s: float | None = None
        self._counted = 0.0
        self._per_s = 0.0
        self.total = 0.0
        """Blocks handed out ever."""

    def took(self, blocks: float) -> None:
        """``blocks`` were handed out."""
        self.total += blocks

    def per_s(self, now_s: float) -> float:
        """Blocks handed out in a second of late."""
        if self._since_s is None:
            self._since_s, self._counted = now_s, self.total
            return 0.0
        passed_s = now_s - self._since_s
        if passed_s > 0.0:
            rate = (self.total - self._counted) / passed_s
            fresh = 1.0 - math.exp(-passed_s / self._memory_s)
            self._per_s += fresh * (rate - self._per_s)
            self._since_s, self._counted = now_s, self.total
        return self._per_s
