"""What moving costs and what computing costs, learned from the ledger.

Both are modelled as ``floor + amount / rate``. The rate and the floor come from a regression of
time on amount with exponential forgetting: small and large transfers together tell the fixed
part from the part that grows. All arithmetic is on plain floats in the order of the stream, so
that every fold gets the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

FORGET = 0.1
"""Weight of a new observation once there are enough of them."""
SLOPE_MIN_SHARE = 0.25
"""The growing part is never taken to be less than this share of mean time per amount, so that
noise cannot make large moves look free."""
HYSTERESIS = 0.15
AMOUNT_MAX, TIME_MIN, TIME_MAX = 1e18, 1e-6, 1e12
"""Observations outside are broken and teach nothing."""
PREFILL_TOKENS_MIN = 64
"""Requests that computed fewer tokens say nothing about the prefill rate."""


class Rate(msgspec.Struct, kw_only=True, gc=False):
    """A learned rate: amount per unit of time, with a floor.

    Links count bytes and milliseconds, prefill counts tokens and seconds.
    """

    n: int = 0
    """Observations."""
    mean: float = 0.0
    """Amount per unit of time, averaged with forgetting."""
    var: float = 0.0
    """Variance of the observed rates around ``mean``."""
    amount: float = 0.0
    """Mean amount."""
    time: float = 0.0
    """Mean time."""
    spread: float = 0.0
    """Variance of the amount."""
    common: float = 0.0
    """Covariance of amount and time."""

    def observe(self, amount: float, time: float) -> bool:
        """Learn from one observation; False (and nothing learned) if it makes no sense."""
        # Written so that NaN fails too.
        if not (0 < amount <= AMOUNT_MAX and TIME_MIN <= time <= TIME_MAX):
            return False
        seen = amount / time
        # Early observations weigh 1/n, so that the first one does not dominate.
        weight = max(FORGET, 1.0 / (self.n + 1))
        off_amount, off_time, off_rate = amount - self.amount, time - self.time, seen - self.mean
        self.amount += weight * off_amount
        self.time += weight * off_time
        self.mean += weight * off_rate
        keep = 1.0 - weight
        self.spread = keep * (self.spread + weight * off_amount * off_amount)
        self.common = keep * (self.common + weight * off_amount * off_time)
        self.var = keep * (self.var + weight * off_rate * off_rate)
        self.n += 1
        return True

    def slope(self) -> float:
        """Time per amount of the part that grows with the amount."""
        ratio = self.time / self.amount if self.amount > 0 else 0.0
        # Amounts that hardly differ cannot tell the two parts apart.
        if self.n < 3 or self.spread < (0.05 * self.amount) ** 2:
            return ratio
        return min(max(self.common / self.spread, SLOPE_MIN_SHARE * ratio), ratio)

    def floor(self) -> float:
        """Time that even the smallest amount takes."""
        return max(0.0, self.time - self.slope() * self.amount)

    def predict(self, amount: float) -> float | None:
        """Time for ``amount``; None while nothing was observed."""
        if self.n == 0:
            return None
        return self.floor() + self.slope() * amount

    def deviation(self) -> float:
        """Standard deviation of the observed rates."""
        return math.sqrt(max(0.0, self.var))


def rate_key(source: str, target: str, backend: str) -> str:
    """The key of a link in ``SpaceState.rates``."""
    return f"{pair_key(source, target)}/{backend}"


def pair_key(source: str, target: str) -> str:
    """The key of a pair in ``SpaceState.choices``."""
    return f"{source}>{target}"


def link_rate(
    rates: Mapping[str, Rate], source: str, target: str, backends: tuple[str, ...]
) -> Rate | None:
    """The best observed rate of the pair over the backends that both have; ties by order."""
    known = [rates.get(rate_key(source, target, name)) for name in backends]
    return max((rate for rate in known if rate is not None and rate.n), key=_speed, default=None)


def _speed(rate: Rate) -> float:
    return rate.mean


def predict_move_ms(rate: Rate | None, size_bytes: int, queue_ms: float = 0.0) -> float | None:
    """Milliseconds to move ``size_bytes`` over a link; None when the link is not known."""
    took = rate.predict(size_bytes) if rate is not None else None
    return None if took is None else took + queue_ms


def predict_recompute_ms(rate: Rate | None, tokens: int) -> float | None:
    """Milliseconds of prefill for ``tokens``; None when the node's rate is not known."""
    if rate is None or rate.n == 0:
        return None
    # The fixed part of a prefill is paid for the tail in any case; only growth can be saved.
    return rate.slope() * tokens * 1_000.0


def worth_moving(
    move_ms: float | None, recompute_ms: float | None, *, before: bool | None = None
) -> bool:
    """Whether to move. An unknown side allows it: only a move can teach what a move costs.

    ``before`` is the last decision for the same pair; it is kept until the other side is better
    by the hysteresis, so that two near-equal costs do not make decisions flap.
    """
    if move_ms is None or recompute_ms is None:
        return True
    if before is None:
        return move_ms < recompute_ms
    return move_ms < recompute_ms * (1.0 + HYSTERESIS if before else 1.0 - HYSTERESIS)
