"""When sessions come back: the gaps between their turns, learned from the ledger.

A gap begins when a turn ends and ends when the session's next turn begins. Sessions that have not
come back yet are counted with the time that they have stayed away so far, so that those that never
come back make a return less likely without anybody having to say after how long a session is over.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

EDGES_S: tuple[float, ...] = tuple(0.25 * 2 ** (k / 2) for k in range(29))
"""Borders of the bins, seconds: 0.25 s to 4,096 s, two bins for each doubling. One bin more lies
before the first border; what lasts longer than the last one counts as never."""
BINS = len(EDGES_S)
NEVER_S = EDGES_S[-1]
WINDOW = 2_000
"""Observations after which an old one weighs a third: habits change."""
PRIOR_WEIGHT = 20.0
"""The prior counts like so many observed gaps."""
PRIOR_MEDIAN_S = 30.0
PRIOR_OCTAVES = 5.0
"""The prior's gaps lie within so many doublings of their median."""
PRIOR_RETURNS = 0.6
"""The prior's share of turns after which the session comes back at all."""
OPEN_MAX = 4_096
"""Sessions of a space whose next turn is waited for; the longest silent ones are given up first."""


class GapCounts(msgspec.Struct, kw_only=True, gc=False):
    """How gaps ended, by bin; old ones weigh less."""

    returned: list[float] = msgspec.field(default_factory=lambda: [0.0] * BINS)
    """The next turn came after so long."""
    silent: list[float] = msgspec.field(default_factory=lambda: [0.0] * (BINS + 1))
    """Until then no turn had come, and nobody waits any more; the last entry means never."""
    total: int = 0
    """Observations ever."""

    def add(self, gap_s: float, *, came: bool) -> None:
        """Count one gap that ended after ``gap_s``, because the turn came or was given up."""
        keep = 1.0 - 1.0 / WINDOW
        self.returned = [one * keep for one in self.returned]
        self.silent = [one * keep for one in self.silent]
        place = bin_of(gap_s)
        if came and place < BINS:
            self.returned[place] += 1.0
        else:
            self.silent[place] += 1.0
        self.total += 1


class OpenSession(msgspec.Struct, kw_only=True, gc=False):
    """A session whose next turn may come."""

    ended_ms: int
    """End of its last turn, server store time."""
    turns: int = 1
    turn: str = ""
    """The router's name of its last turn: a turn has a request on each of its engines."""
    prompt_tokens: int = 0


class SessionGaps(msgspec.Struct, kw_only=True):
    """Everything learned about a space's sessions. A fold: times are those of the stream.

    After a first turn fewer sessions come back than after later ones, so the two are told apart.
    """

    first: GapCounts = msgspec.field(default_factory=GapCounts)
    later: GapCounts = msgspec.field(default_factory=GapCounts)
    open: dict[str, OpenSession] = {}
    """By name, in the order in which their last turns ended."""

    def turn(
        self, session: str, turn: str, began_ms: int, ended_ms: int, prompt_tokens: int
    ) -> None:
        """A request of the session ran from ``began_ms`` to ``ended_ms`` on one engine."""
        known = self.open.pop(session, None)
        if known is None:
            known = OpenSession(ended_ms=ended_ms)
        elif _is_next(known, turn, began_ms, prompt_tokens):
            self._counts(known).add((began_ms - known.ended_ms) / 1_000.0, came=True)
            known.turns += 1
        known.turn, known.prompt_tokens = turn, max(prompt_tokens, known.prompt_tokens)
        known.ended_ms = max(ended_ms, known.ended_ms)
        self.open[session] = known
        self._give_up(ended_ms)

    def ended(self, session: str, now_ms: int) -> None:
        """The client said that the session is over: it tells nothing about those still open."""
        known = self.open.pop(session, None)
        if known is not None:
            self._counts(known).add(max(0, now_ms - known.ended_ms) / 1_000.0, came=False)

    def _counts(self, known: OpenSession) -> GapCounts:
        return self.first if known.turns == 1 else self.later

    def _give_up(self, now_ms: int) -> None:
        while self.open:
            session, oldest = next(iter(self.open.items()))
            silent_s = (now_ms - oldest.ended_ms) / 1_000.0
            if silent_s < NEVER_S and len(self.open) <= OPEN_MAX:
                return
            del self.open[session]
            self._counts(oldest).add(max(0.0, silent_s), came=False)


def _is_next(known: OpenSession, turn: str, began_ms: int, prompt_tokens: int) -> bool:
    """Whether a request begins the session's next turn; not if it is another part of the last."""
    if turn and turn == known.turn:
        return False
    if not turn and prompt_tokens <= known.prompt_tokens:
        return False  # Without a router's name: the same prompt on the second engine.
    return began_ms > known.ended_ms


class GapModel(msgspec.Struct, frozen=True, kw_only=True):
    """How likely a session stays away for longer than each of :data:`EDGES_S`.

    Made by :func:`learned` at the coordinator, sent to nodes, used by retention.
    """

    first: tuple[float, ...]
    later: tuple[float, ...]
    samples: int = 0
    """Observed gaps behind it; 0 for the prior."""

    def stays_away(self, age_s: float, turns: int = 2) -> float:
        """Probability that a session is still away ``age_s`` after its turn number ``turns``."""
        survival = self.first if turns <= 1 else self.later
        place = bin_of(age_s)
        if place >= BINS:
            return survival[-1]
        after = survival[place]
        if place == 0:
            return 1.0 - (1.0 - after) * max(0.0, age_s) / EDGES_S[0]
        before = survival[place - 1]
        share = math.log(age_s / EDGES_S[place - 1]) / _BIN_WIDTH
        return before + (after - before) * share

    def returns(self, age_s: float, after_s: float, until_s: float, turns: int = 2) -> float:
        """Probability of the next turn between two ages, given that ``age_s`` passed without it.

        Args:
            age_s: seconds since the last turn ended.
            after_s: begin of the window, seconds since the last turn ended.
            until_s: end of the window.
            turns: turns that the session had.
        """
        left = self.stays_away(age_s, turns)
        begin = max(age_s, after_s)
        if left <= 0.0 or until_s <= begin:
            return 0.0
        gone = self.stays_away(begin, turns) - self.stays_away(until_s, turns)
        return min(1.0, max(0.0, gone / left))

    def median_s(self, turns: int = 2) -> float | None:
        """After so long half of the sessions that will come back are back; None if none will."""
        survival = self.first if turns <= 1 else self.later
        half = 1.0 - (1.0 - survival[-1]) / 2
        if survival[-1] >= 1.0:
            return None
        return next(edge for edge, left in zip(EDGES_S, survival, strict=True) if left <= half)


_BIN_WIDTH = math.log(EDGES_S[1] / EDGES_S[0])


def bin_of(gap_s: float) -> int:
    """The bin of a gap in seconds; ``BINS`` for one that counts as never."""
    return bisect_right(EDGES_S, gap_s)


def learned(gaps: SessionGaps, now_ms: int) -> GapModel:
    """What the ledger has taught so far, with the prior where that is little.

    Args:
        gaps: the fold.
        now_ms: the present in server store time: sessions still open have been away until then.
    """
    away: tuple[list[float], list[float]] = ([0.0] * (BINS + 1), [0.0] * (BINS + 1))
    for session in gaps.open.values():
        age_s = max(0, now_ms - session.ended_ms) / 1_000.0
        away[0 if session.turns == 1 else 1][bin_of(age_s)] += 1.0
    return GapModel(
        first=_survival(gaps.first, away[0]),
        later=_survival(gaps.later, away[1]),
        samples=gaps.first.total + gaps.later.total,
    )


def prior() -> GapModel:
    """What is assumed while nothing was learned."""
    return learned(SessionGaps(), 0)


def _survival(counts: GapCounts, away: Sequence[float]) -> tuple[float, ...]:
    """The share still away at each border: a product-limit estimate over the bins."""
    silent = [a + b for a, b in zip(counts.silent, away, strict=True)]
    at_risk = sum(counts.returned) + sum(silent) + PRIOR_WEIGHT
    left, survival = 1.0, []
    for place in range(BINS):
        came = counts.returned[place] + _PRIOR[place]
        # Who is given up within a bin was at risk for half of it.
        seen = at_risk - silent[place] / 2
        left *= 1.0 - min(1.0, came / seen) if seen > 0.0 else 1.0
        survival.append(left)
        at_risk -= came + silent[place]
    return tuple(survival)


def _prior_counts() -> tuple[float, ...]:
    """Gaps spread evenly in their logarithm, thinning out away from the median."""
    heights = []
    for place in range(BINS):
        octaves = abs(math.log2(EDGES_S[place] / PRIOR_MEDIAN_S))
        heights.append(max(0.0, 1.0 - octaves / PRIOR_OCTAVES))
    scale = PRIOR_WEIGHT * PRIOR_RETURNS / sum(heights)
    return tuple(height * scale for height in heights)


_PRIOR = _prior_counts()
