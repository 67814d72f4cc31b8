"""Predictions beside what came: how far off they were, and what wrong decisions cost.

Information for an operator, not an invariant: a prediction may be wrong. It is broken only where
it says what no prediction can say: a time below zero, no number at all, or a time without a basis.
"""

from __future__ import annotations

import math

import msgspec

from kvferry.core.accuracy import SELDOM, Joiner, Outcome
from kvferry.core.events import Requested
from kvferry.replay.advise.spread import Values
from kvferry.replay.audit.decisions import Decided, Decisions
from kvferry.replay.audit.finding import End, Findings, Seen

KEYS_MAX = 4_096
"""Links and nodes that are told apart; what is beyond counts in all only."""
VALUES_PER_KEY_MAX = 10_000
TIMES = ("predicted_ms", "recompute_ms", "queue_ms", "prefill_ms", "doubt")


class ErrorFactor(msgspec.Struct, frozen=True, kw_only=True):
    """How many times the larger of predicted and measured was the smaller; 1 is exact."""

    what: str
    """``move`` or ``prefill``."""
    space: str
    """Empty for all spaces together."""
    key: str
    """``source>target/backend`` of a move, the node of a prefill; empty for all together."""
    count: int
    median: float
    p95: float
    took: float
    """Median of measured over predicted: above 1 it usually takes longer than predicted."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a range's predictions."""

    factors: tuple[ErrorFactor, ...]
    """By link and node, and then one of all moves and one of all prefills."""
    decisions: tuple[Decided, ...]
    """By kind, as far as hindsight can judge them."""


class _Ratios:
    """Of one key."""

    def __init__(self) -> None:
        self._factors = Values(VALUES_PER_KEY_MAX)
        self._took = Values(VALUES_PER_KEY_MAX)

    def add(self, outcome: Outcome) -> None:
        ratio = outcome.measured_ms / outcome.predicted_ms
        self._took.add(ratio)
        self._factors.add(max(ratio, 1.0 / ratio))

    def judged(self, what: str, space: str, key: str) -> ErrorFactor:
        return ErrorFactor(
            what=what,
            space=space,
            key=key,
            count=self._factors.count,
            median=self._factors.at(0.5),
            p95=self._factors.at(0.95),
            took=self._took.at(0.5),
        )


class Predictions:
    """Judges what plans said, by the one rule that :mod:`kvferry.core.accuracy` has."""

    def __init__(self) -> None:
        self._joiners: dict[str, Joiner] = {}
        self._decisions: dict[str, Decisions] = {}
        self._ratios: dict[tuple[str, str, str], _Ratios] = {}
        self._all: dict[str, _Ratios] = {}

    def see(self, seen: Seen, found: Findings) -> None:
        space, event = seen.batch.space, seen.entry.event
        if isinstance(event, Requested) and (wrong := _impossible(event)):
            found.broken(
                "prediction",
                seen,
                event.transfer or event.request,
                f"{seen.node} recorded an impossible prediction for request {event.request}: "
                f"{wrong}",
            )
            return
        outcome = self._joiners.setdefault(space, Joiner()).see(seen.node, event)
        if outcome is not None and min(outcome.predicted_ms, outcome.measured_ms) > SELDOM:
            self._of(outcome.what, space, outcome.key).add(outcome)
            self._all.setdefault(outcome.what, _Ratios()).add(outcome)
        self._decisions.setdefault(space, Decisions()).see(seen.node, event)

    def end(self, end: End, found: Findings) -> None:
        """A prediction whose outcome is not in the range says nothing."""

    def judgement(self) -> Judgement:
        """Of all that was seen."""
        each = sorted(self._ratios.items())
        factors = [ratios.judged(*key) for key, ratios in each]
        factors += [ratios.judged(what, "", "") for what, ratios in sorted(self._all.items())]
        sums: dict[str, Decided] = {}
        for decisions in self._decisions.values():
            for one in decisions.decided():
                sums[one.kind] = one.plus(sums.get(one.kind))
        return Judgement(factors=tuple(factors), decisions=tuple(sums.values()))

    def _of(self, what: str, space: str, key: str) -> _Ratios:
        where = (what, space, key)
        known = self._ratios.get(where)
        if known is None:
            known = _Ratios()
            if len(self._ratios) < KEYS_MAX:
                self._ratios[where] = known
        return known


def _impossible(event: Requested) -> str:
    """What no prediction can say; empty for one that may merely be wrong."""
    for name in TIMES:
        value = getattr(event, name)
        if not math.isfinite(value) or value < 0:
            return f"{name} is {value}"
    # A queue may be known where the link is not: then there is no whole for it to be a part of.
    if 0.0 < event.predicted_ms < event.queue_ms - SELDOM:
        return f"queue_ms {event.queue_ms:g} is a part of predicted_ms {event.predicted_ms:g}"
    if event.predicted_ms > SELDOM and not event.source:
        return f"predicted_ms is {event.predicted_ms:g} for a pull from nobody"
    if event.predicted_ms > SELDOM and event.transfer and not event.basis:
        return f"predicted_ms is {event.predicted_ms:g} for a transfer without a basis"
    return ""
