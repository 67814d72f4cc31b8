"""What was measured, and what the two simulations make of it, summed up in bounded memory."""

from __future__ import annotations

import math
from collections import deque

import msgspec

from kvferry.core.accuracy import MOVE, PREFILL, SELDOM, Outcome
from kvferry.replay.advise.spread import Values
from kvferry.replay.whatif.choose import Found

KNOWN_UNITS_MAX = 1 << 20
"""Sampled blocks that are remembered as computed before: 134 million tokens at 128 each."""
TIMES_MAX = 50_000


class Sum(msgspec.Struct, kw_only=True):
    """One figure: measured, and the differences that the simulations show."""

    was: float = 0.0
    change: float = 0.0
    """Under the other policy less under the recorded one, both simulated."""
    missed: float = 0.0
    """Simulated under the recorded policy less measured."""
    squares: float = 0.0
    changed: int = 0
    """Requests for which the two policies differ."""

    def add(self, was: float, base: float, other: float) -> None:
        """One request."""
        self.was += was
        self.change += other - base
        self.missed += base - was
        self.squares += (base - was) ** 2
        self.changed += other != base

    @property
    def forecast(self) -> float:
        """Under the other policy."""
        return max(0.0, self.was + self.change)

    def band(self, unit: float) -> float:
        """By how much the forecast may be off: by what the simulation of the recorded policy
        misses, by twice the noise of its single requests, and by half a unit for each request
        that changes."""
        return abs(self.missed) + 2.0 * math.sqrt(self.squares) + unit / 2 * self.changed


class Known:
    """Which units were computed before, by any node; the oldest are forgotten."""

    def __init__(self) -> None:
        self._units: set[int] = set()
        self._order: deque[int] = deque()

    def repeated(self, chain: tuple[int, ...]) -> int:
        """How many of a prompt's first units were computed before."""
        known = self._units
        return next((at for at, unit in enumerate(chain) if unit not in known), len(chain))

    def add(self, chain: tuple[int, ...]) -> None:
        """These are computed now."""
        for unit in chain:
            if unit not in self._units:
                self._units.add(unit)
                self._order.append(unit)
        while len(self._order) > KNOWN_UNITS_MAX:
            self._units.discard(self._order.popleft())


class Times:
    """Times to first token with what changes them, of which quantiles are asked."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, float, float]] = []
        self._every = 1
        self.count = 0

    def add(self, ttft_ms: float, move_ms: float, compute_ms: float) -> None:
        """One: measured, and how much longer moving and computing take under the other policy."""
        if self.count % self._every == 0:
            if len(self._kept) >= TIMES_MAX:
                del self._kept[1::2]
                self._every *= 2
            if self.count % self._every == 0:
                self._kept.append((ttft_ms, move_ms, compute_ms))
        self.count += 1

    def quantiles(self, move: float, compute: float) -> tuple[float, float, float]:
        """p50, p95 and p99 in ms, with so much of the two changes; (0, 0) is what was."""
        ordered = sorted(max(0.0, t + move * m + compute * c) for t, m, c in self._kept)
        if not ordered:
            return 0.0, 0.0, 0.0
        last = len(ordered) - 1
        p50, p95, p99 = (ordered[min(last, int(len(ordered) * q))] for q in (0.5, 0.95, 0.99))
        return p50, p95, p99


class Errors:
    """How far off predictions were, relative to what was predicted, by kind."""

    def __init__(self) -> None:
        self._off = {MOVE: Values(), PREFILL: Values()}

    def add(self, outcome: Outcome) -> None:
        """One prediction and what came of it."""
        if min(outcome.predicted_ms, outcome.measured_ms) > SELDOM:
            self._off[outcome.what].add(abs(outcome.measured_ms / outcome.predicted_ms - 1.0))

    def count(self, what: str) -> int:
        """Predictions whose outcome is known."""
        return self._off[what].count

    def at(self, what: str, share: float) -> float:
        """So large a share of them was off by no more; 0 where there are none."""
        return self._off[what].at(share)


class Figures:
    """Everything of one study."""

    def __init__(self) -> None:
        self.requests = self.unplaced = self.unnamed = 0
        self.computed, self.recomputed = Sum(), Sum()
        self.bytes, self.host_tokens = Sum(), Sum()
        self.known = Known()
        self.by_request, self.by_turn = Times(), Times()
        self.errors = Errors()
        self.unit_tokens = self.unit_bytes = 0

    def request(
        self, was: Found, base: Found, other: Found, repeated: int, ttft_ms: float
    ) -> tuple[float, float]:
        """One request: measured, and under both policies; ``repeated`` tokens of its prompt had
        been computed before. Returns how much longer moving and computing take."""
        self.requests += 1
        had = _aligned(was.had, base.had, other.had, self.unit_tokens)
        self.computed.add(*(max(0, was.prompt - one) for one in had))
        self.recomputed.add(*(max(0, min(repeated, was.prompt) - one) for one in had))
        self.bytes.add(*_aligned(was.bytes, base.bytes, other.bytes, self.unit_bytes))
        self.host_tokens.add(was.from_host, base.from_host, other.from_host)
        move, compute = other.move_ms - base.move_ms, other.compute_ms - base.compute_ms
        if ttft_ms > 0:
            self.by_request.add(ttft_ms, move, compute)
        return move, compute


def _aligned(was: int, base: int, other: int, unit: int) -> tuple[int, int, int]:
    """The same three, without what only comes of counting whole units: where the simulation of
    the recorded policy has what was measured but for a part of a unit, it has it all."""
    if abs(was - base) >= unit:
        return was, base, other
    return was, was, was + other - base if other >= base else other
