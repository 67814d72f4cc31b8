"""A learned time: a few growing parts with coefficients that are never negative.

A weighted least squares fit with exponential forgetting, kept as its sums, so that its size does
not grow. Errors count relative to the time, for a large transfer is not noisier than a small one
in any other sense. All arithmetic is on plain floats in the order of the stream, so that every
fold comes to the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvferry.core.cost_solve import fitted, product, solve

TIME_MIN_MS, TIME_MAX_MS, PART_MAX = 1e-3, 1e12, 1e18
"""Observations outside are broken and teach nothing."""
SPREAD_FIRST = 0.25
"""Relative standard deviation that is assumed before there are observations to tell."""
SPREAD_MIN = 0.05
SPREAD_NEW = 0.1
"""Weight of a new error in the running spread."""
SURPRISE_MIN = math.log(1.8)
"""An error is no surprise below this, however well the past was predicted."""
SURPRISE_SPREADS = 3.5
SURPRISE_MAX = math.log(2.5)
"""Above this it is one, however badly the past was predicted: or each that is just none widens what
the next may be, and a change is taken for noise for long."""
LEVERAGE_MAX = 1e6
OTHERS_SHARE = 0.3
"""Before it is seen, each part but the first growing one is thought to take nothing, give or take
this share of the usual time: where amounts hardly differ, noise alone would tell of any split. How
sure a prediction is does not count on that."""


class Fit(msgspec.Struct, kw_only=True, gc=False):
    """``time = sum of coefficient * part``; part 0 is always 1, the fixed time."""

    n: int = 0
    """Observations."""
    weight: float = 0.0
    """Observations that still count, as a number."""
    sums: list[float] = []
    """Weighted sums of the products of parts, row after row."""
    usual_ms: float = 0.0
    """Mean time of late."""
    times: list[float] = []
    """Weighted sums of part times time."""
    coefficients: list[float] = []
    """Milliseconds for one of each part."""
    spread: float = SPREAD_FIRST
    """Relative standard deviation of single observations around the prediction."""
    bias: float = 0.0
    """Mean of ln(observed / predicted) of late: above 0 it took longer than was predicted."""
    surprises: int = 0
    """Consecutive observations far off in one direction; its sign is the direction."""

    def predict(self, parts: Sequence[float]) -> float | None:
        """Milliseconds; None while nothing was observed."""
        if not self.n:
            return None
        return product(self.coefficients, parts)

    def doubt(self, parts: Sequence[float]) -> float:
        """Relative standard error of a prediction, apart from the noise of one time: large for
        amounts unlike those that were seen."""
        return self.noise() * math.sqrt(self._leverage(parts, self.predict(parts)))

    def noise(self) -> float:
        """Relative standard deviation of a single time, and no less than can be told."""
        return max(self.spread, SPREAD_MIN)

    def observe(
        self, parts: Sequence[float], time_ms: float, *, keep: float, jump_after: int
    ) -> bool:
        """Learn from one observation; False (and nothing learned) if it makes no sense.

        Args:
            parts: what the time is made of; the first is 1.
            time_ms: what was observed.
            keep: weight that is left of the past, below 1.
            jump_after: so many surprises in a row, all in one direction, and what was learned is
                taken to be the past: the whole is scaled to the last one and learned afresh.
        """
        # Written so that NaN fails too.
        if not TIME_MIN_MS <= time_ms <= TIME_MAX_MS:
            return False
        for part in parts:
            if not 0.0 <= part <= PART_MAX:
                return False
        expected = self.predict(parts)
        if expected is not None and expected > 0.0:
            time_ms, expected = self._judge(parts, time_ms, expected, jump_after)
        near = time_ms if expected is None else min(max(expected, time_ms / 2), time_ms * 2)
        self._add(parts, time_ms, 1.0 / (near * near), keep)
        return True

    def _judge(
        self, parts: Sequence[float], time_ms: float, expected: float, jump_after: int
    ) -> tuple[float, float]:
        """Note how far off the prediction was; the time to learn from, and what is expected now."""
        error = math.log(time_ms / expected)
        width = math.sqrt(1.0 + self._leverage(parts, expected))
        bound = max(SURPRISE_MIN, min(SURPRISE_SPREADS * self.spread, SURPRISE_MAX) * width)
        if abs(error) <= bound:
            self.surprises = 0
            # What was hardly known could not be predicted better, and says little of the noise.
            own, new = error / width, SPREAD_NEW / (width * width)
            self.bias += new * (error - self.bias)
            self.spread = math.sqrt((1.0 - new) * self.spread * self.spread + new * own * own)
            return time_ms, expected
        same_way = (error > 0) == (self.surprises > 0)
        step = 1 if error > 0 else -1
        self.surprises = self.surprises + step if same_way else step
        if abs(self.surprises) >= jump_after:
            self._rescale(time_ms / expected)
            self.surprises = 0
            self.bias = 0.0
            return time_ms, product(self.coefficients, parts)
        return expected * math.exp(math.copysign(bound, error)), expected

    def _leverage(self, parts: Sequence[float], expected: float | None) -> float:
        """Variance of the prediction ``expected`` over that of one observation, both relative to
        their time."""
        if not expected or expected < 0.0:
            return LEVERAGE_MAX
        scaled = [part / expected for part in parts]
        found = product(scaled, solve(self.sums, scaled))
        # What rounding has eaten is not known either.
        return min(max(found, 0.0), LEVERAGE_MAX) if math.isfinite(found) else LEVERAGE_MAX

    def _rescale(self, ratio: float) -> None:
        """Everything takes ``ratio`` times as long now; what was seen counts as one observation."""
        shrink = 1.0 / max(1.0, self.weight)
        self.coefficients = [ratio * c for c in self.coefficients]
        # Weights are inverse squares of times.
        self.sums = [shrink * one / (ratio * ratio) for one in self.sums]
        self.times = [shrink * one / ratio for one in self.times]
        self.usual_ms *= ratio
        self.weight *= shrink

    def _add(self, parts: Sequence[float], time_ms: float, weight: float, keep: float) -> None:
        count = len(parts)
        if not self.n:
            self.sums, self.times = [0.0] * (count * count), [0.0] * count
        weighted = [weight * part for part in parts]
        products = [one * other for one in weighted for other in parts]
        self.times = [keep * t + one * time_ms for t, one in zip(self.times, weighted, strict=True)]
        self.sums = [keep * s + one for s, one in zip(self.sums, products, strict=True)]
        self.weight = keep * self.weight + 1.0
        self.usual_ms += (time_ms - self.usual_ms) / self.weight
        self.n += 1
        self.coefficients = fitted(self._believed(), self.times)

    def _believed(self) -> list[float]:
        """The sums with what is thought of the parts before they can be told apart."""
        count, sums = len(self.times), list(self.sums)
        weight = (self.spread / (OTHERS_SHARE * self.usual_ms)) ** 2
        for part in (0, *range(2, count)):
            usual = self.sums[part] / self.sums[0]
            sums[part * count + part] += weight * usual * usual
        return sums
