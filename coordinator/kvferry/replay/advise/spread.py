"""Percentiles of any number of values in bounded memory."""

from __future__ import annotations

from kvferry.replay.advise.report import Spread

VALUES_MAX = 50_000
"""Beyond these every second value is dropped, evenly over the time that they came in."""


class Values:
    """Values of which percentiles are wanted: exact up to :data:`VALUES_MAX`, then a sample."""

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        self._max = values_max
        self._kept: list[float] = []
        self._every = 1
        self.count = 0

    def add(self, value: float) -> None:
        """One more."""
        if self.count % self._every == 0:
            if len(self._kept) >= self._max:
                self._thin()
            if self.count % self._every == 0:
                self._kept.append(value)
        self.count += 1

    def _thin(self) -> None:
        del self._kept[1::2]
        self._every *= 2

    def at(self, share: float) -> float:
        """The value below which ``share`` (0 to 1) of them lie, one that was added; 0 of none."""
        if not self._kept:
            return 0.0
        ordered = sorted(self._kept)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    def below(self, limit: float) -> float | None:
        """The share of values up to ``limit``; None of none."""
        if not self._kept:
            return None
        return sum(1 for value in self._kept if value <= limit) / len(self._kept)

    def spread(self) -> Spread:
        """Their percentiles."""
        return Spread(
            count=self.count,
            p50=self.at(0.5),
            p90=self.at(0.9),
            p95=self.at(0.95),
            p99=self.at(0.99),
        )
