"""How a pair's last choices went, and what trials of a link that is thought too dear may cost.

A link that carries nothing teaches nothing, and would stay dear for ever after one bad minute. So
each time that it is passed over, a small share of what is computed instead is put aside, that of
the present request included, and where that pays for moving a small part of a prefix, a part is
moved.
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
    known = _known(trials, pair)
    known.moving = False
    if recompute_ms > 0:
        # No more than what one request costs, so that a long silence is not followed by a spree.
        most_ms = max(known.credit_ms, min(recompute_ms, 1e12))
        known.credit_ms = min(known.credit_ms + put_aside(recompute_ms), most_ms)


def put_aside(recompute_ms: float) -> float:
    """What a request that computes for so long although it could move adds to a pair's credit."""
    return TRIAL_SHARE * recompute_ms


def taken(
    trials: dict[str, Trial], pair: str, move_ms: float, recompute_ms: float, parts: float = 1.0
) -> None:
    """The pair moves something that is thought to take ``move_ms`` against ``recompute_ms``.

    ``parts`` is how many times as much was wanted. The rest of a trial's prefix is computed, so
    the trial's own request puts aside too.
    """
    if not (move_ms > 0 and recompute_ms > 0):
        return
    dear, trial = move_ms > recompute_ms, parts > 1.0
    known = _known(trials, pair) if dear and trial else trials.get(pair)
    if known is None:
        return
    if dear:
        own_ms = put_aside(recompute_ms * parts) if trial else 0.0
        known.credit_ms = max(0.0, known.credit_ms + own_ms - (move_ms - recompute_ms))
    if move_ms <= recompute_ms * (1.0 + HYSTERESIS):
        known.moving = True


def _known(trials: dict[str, Trial], pair: str) -> Trial:
    known = trials.get(pair)
    if known is None:
        if len(trials) >= TRIALS_MAX:
            del trials[next(iter(trials))]
        known = trials[pair] = Trial()
    return known
