"""What moving costs and what computing costs, learned from the ledger, and which is less.

A link's time is ``floor + bytes / rate``. A prefill's is a fixed part, a part for each token, and
a part for each token and token before it: attention makes long prompts dearer than their length.
Both are learned per pair and backend and per node (:class:`kvferry.core.cost_fit.Fit`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from kvferry.core.cost_fit import Fit

MODEL = 2
"""Version of these predictions; stands in the events that carry one. 0: none was made; 1 knew
neither the length of a context nor queues."""
HYSTERESIS = 0.08
UNSEEN_MAX = 0.3
"""Moving amounts unlike any seen is thought a quarter cheaper than it seems, and no more: a small
trial tells more of a link that seems dearer still, and a whole prefix need not."""
PAYS_MIN, PAYS_MAX = 256, 1 << 17
"""Prompts in tokens between which :func:`pays_from` looks."""
LINK_KEEP, PREFILL_KEEP = 0.9, 0.97
LINK_JUMP, PREFILL_JUMP = 1, 4
"""Surprises after which a changed speed is believed. A link that turns slow is believed at once,
for each transfer that disbelieves it is paid in full, and a small trial soon shows an error. A
prefill is timed beside other requests, and a few slow ones in a row mean little."""
PREFILL_TOKENS_MIN = 64
"""Requests that computed fewer tokens say nothing about prefill."""

_MB, _KILO = 1e-6, 1e-3


class LinkCost(msgspec.Struct, kw_only=True, gc=False):
    """What moving takes from one node to another over one backend."""

    fit: Fit = msgspec.field(default_factory=Fit)

    @property
    def n(self) -> int:
        """Observations."""
        return self.fit.n

    def observe(self, size_bytes: float, time_ms: float) -> bool:
        """Learn from one transfer; False if it makes no sense."""
        if not size_bytes > 0:
            return False
        parts = (1.0, size_bytes * _MB)
        return self.fit.observe(parts, time_ms, keep=LINK_KEEP, jump_after=LINK_JUMP)

    def predict(self, size_bytes: float) -> float | None:
        """Milliseconds for so many bytes; None while nothing was observed."""
        return self.fit.predict((1.0, size_bytes * _MB))

    def doubt(self, size_bytes: float) -> float:
        """Relative standard error of :meth:`predict`; 0 while nothing was observed."""
        return self.fit.doubt((1.0, size_bytes * _MB)) if self.n else 0.0

    def unseen(self, size_bytes: float) -> float:
        """What :meth:`doubt` is beyond the noise of one transfer: above 0 less is known of such an
        amount than one transfer would tell; 0 while nothing was observed."""
        return max(0.0, self.doubt(size_bytes) - self.fit.noise()) if self.n else 0.0

    def floor_ms(self) -> float:
        """What even the smallest transfer takes."""
        return self.fit.coefficients[0] if self.n else 0.0

    def bytes_per_ms(self) -> float:
        """Rate of the part that grows; 0 while nothing was observed."""
        slope = self.fit.coefficients[1] if self.n else 0.0
        return 1.0 / (slope * _MB) if slope > 0 else 0.0


class PrefillCost(msgspec.Struct, kw_only=True, gc=False):
    """What computing prompt tokens takes on one node."""

    fit: Fit = msgspec.field(default_factory=Fit)

    @property
    def n(self) -> int:
        """Observations."""
        return self.fit.n

    def observe(self, tokens: int, before: int, time_ms: float) -> bool:
        """Learn from a request that computed ``tokens`` after ``before`` that it had."""
        if tokens < PREFILL_TOKENS_MIN or before < 0:
            return False
        parts = _prefill_parts(1.0, before, before + tokens)
        return self.fit.observe(parts, time_ms, keep=PREFILL_KEEP, jump_after=PREFILL_JUMP)

    def predict(self, tokens: int, before: int = 0) -> float | None:
        """Milliseconds until the first token; None while nothing was observed."""
        return self.fit.predict(_prefill_parts(1.0, before, before + tokens))

    def saved_ms(self, start: int, end: int) -> float | None:
        """What need not be computed of tokens ``start`` to ``end``: without the fixed part, which
        is paid for the tail in any case. None while nothing was observed."""
        return self.fit.predict(_prefill_parts(0.0, start, max(start, end)))

    def tokens_per_s(self, tokens: int = 1_000) -> float:
        """Speed of a prompt of so many tokens; 0 while nothing was observed."""
        took = self.predict(tokens)
        return 1_000.0 * tokens / took if took else 0.0


def _prefill_parts(fixed: float, start: int, end: int) -> tuple[float, float, float]:
    pairs = (end * end - start * start) / 2.0
    return fixed, (end - start) * _KILO, pairs * _KILO * _KILO


def rate_key(source: str, target: str, backend: str) -> str:
    """The key of a link in ``SpaceState.rates``."""
    return f"{pair_key(source, target)}/{backend}"


def pair_key(source: str, target: str) -> str:
    """The key of a pair in ``SpaceState.choices`` and ``SpaceState.trials``."""
    return f"{source}>{target}"


def link_cost(
    rates: Mapping[str, LinkCost],
    source: str,
    target: str,
    backends: tuple[str, ...],
    chosen: str = "",
) -> LinkCost | None:
    """What is known of the pair over the backend that it uses, else over the fastest that both
    have; ties by order. None when nothing is known."""
    in_use = rates.get(rate_key(source, target, chosen)) if chosen else None
    if in_use is not None and in_use.n:
        return in_use
    known = [rates.get(rate_key(source, target, name)) for name in backends]
    seen = (rate for rate in known if rate is not None and rate.n)
    return max(seen, key=LinkCost.bytes_per_ms, default=None)


def predict_move_ms(link: LinkCost | None, size_bytes: int, queue_ms: float = 0.0) -> float | None:
    """Milliseconds to move ``size_bytes`` over a link; None when the link is not known."""
    took = link.predict(size_bytes) if link is not None else None
    return None if took is None else took + queue_ms


def predict_recompute_ms(prefill: PrefillCost | None, tokens: int, start: int = 0) -> float | None:
    """Milliseconds to compute ``tokens`` tokens from ``start`` on; None when the node's prefill is
    not known."""
    return None if prefill is None else prefill.saved_ms(start, start + tokens)


def worth_moving(
    move_ms: float | None,
    recompute_ms: float | None,
    *,
    before: bool | None = None,
    unseen: float = 0.0,
) -> bool:
    """Whether to move. An unknown side allows it: only a move can teach what a move costs.

    Args:
        move_ms: what moving is thought to take.
        recompute_ms: what computing is thought to take.
        before: the last decision for the same pair; it is kept until the other side is better by
            the hysteresis, so that two near-equal costs do not make decisions flap.
        unseen: of what moves (:meth:`LinkCost.unseen`); amounts unlike any seen are tried. Any
            smaller doubt is no reason: a small trial clears it (:mod:`kvferry.core.trials`), and a
            whole prefix that moves in the hope of luck is paid in full each time.
    """
    if move_ms is None or recompute_ms is None:
        return True
    least_ms = move_ms * math.exp(-min(unseen, UNSEEN_MAX))
    if before is None:
        return least_ms < recompute_ms
    return least_ms < recompute_ms * (1.0 + HYSTERESIS if before else 1.0 - HYSTERESIS)


def pays_from(
    link: LinkCost, prefill: PrefillCost, token_bytes: float, *, before: bool | None = None
) -> int:
    """The shortest prefix in tokens that is worth moving; 0 where even a short one is.

    Where none is up to ``PAYS_MAX``, twice that.
    """
    tokens = PAYS_MIN
    while tokens <= PAYS_MAX:
        size = tokens * token_bytes
        move_ms, recompute_ms = link.predict(size), prefill.saved_ms(0, tokens)
        if worth_moving(move_ms, recompute_ms, before=before, unseen=link.unseen(size)):
            return 0 if tokens == PAYS_MIN else tokens
        tokens *= 2
    return tokens
