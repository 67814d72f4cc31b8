"""How a pair's last choices went, and what trials of a link that is thought too dear may cost.

A link that carries nothing teaches nothing, and would stay dear for ever after one bad minute. So
each time that it is passed over, a small share of what was computed instead is put aside, and once
that pays for moving a small part of a prefix, a part is moved.
"""

from __future__ import annotations

import msgspec

from kvferry.core.cost import HYSTERESIS

TRIAL_SHARE = 0.03
"""Of the time that was computed instead of moving: what trials may cost beyond computing."""
TRIALS_MAX = 4_096
"""Pairs whose choices are remembered."""


class Trial(msgspec.Struct, kw_only=True, gc=False):
    """One pair of nodes that was found too dear at least once."""

    moving: bool = False
    """The last choice."""
    credit_ms: float = 0.0
    """Put aside for trials."""


def passed_over(trials: dict[str, Trial], pair: str, recompute_ms: float) -> None:
    """The pair was found too dear, and ``recompute_ms`` were computed instead."""
    known = trials.get(pair)
    if known is None:
        if len(trials) >= TRIALS_MAX:
            del trials[next(iter(trials))]
        known = trials[pair] = Trial()
    known.moving = False
    if recompute_ms > 0:
        # No more than what one request costs, so that a long silence is not followed by a spree.
        most_ms = max(known.credit_ms, min(recompute_ms, 1e12))
        known.credit_ms = min(known.credit_ms + TRIAL_SHARE * recompute_ms, most_ms)


def taken(trials: dict[str, Trial], pair: str, move_ms: float, recompute_ms: float) -> None:
    """The pair moves something that is thought to take ``move_ms`` against ``recompute_ms``."""
    known = trials.get(pair)
    if known is None or not (move_ms > 0 and recompute_ms > 0):
        return
    if move_ms > recompute_ms:
        known.credit_ms = max(0.0, known.credit_ms - (move_ms - recompute_ms))
    if move_ms <= recompute_ms * (1.0 + HYSTERESIS):
        known.moving = True
