"""What ``kvferry whatif`` found, as one document with stable keys."""

from __future__ import annotations

import msgspec

from kvferry.core.accuracy import MOVE, PREFILL
from kvferry.replay.whatif.figures import Sum
from kvferry.replay.whatif.policy import Policy
from kvferry.replay.whatif.study import Pass
from kvferry.replay.whatif.tally import Differing, Tally

TURN, REQUEST = "turn", "request of an engine"


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One figure."""

    was: float
    forecast: float
    low: float
    high: float
    changed: int = 0
    """Requests for which it changes."""


class Reproduced(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded decisions of one kind, decided again."""

    kind: str
    decided: int
    same: int
    why: dict[str, int]
    examples: tuple[Differing, ...]


class ModelError(msgspec.Struct, frozen=True, kw_only=True):
    """How far off predictions were from what came of them, relative to what was predicted."""

    what: str
    """``move`` or ``prefill``."""
    count: int
    p50: float
    p95: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document. Times in ms; a forecast that is refused is None."""

    of: str
    first: int
    last: int
    span_s: float
    events: int
    events_per_s: float
    decisions: int
    reproduced: float
    """Share of the decisions."""
    enough: bool
    kinds: tuple[Reproduced, ...]
    not_decided: dict[str, int]
    """Requests about which no policy decided, by what happened."""
    policy: Policy
    requests: int
    computed_tokens: Forecast | None = None
    recomputed_tokens: Forecast | None = None
    moved_bytes: Forecast | None = None
    host_tokens: Forecast | None = None
    ttft_of: str = REQUEST
    ttft_count: int = 0
    ttft_p50_ms: Forecast | None = None
    ttft_p95_ms: Forecast | None = None
    ttft_p99_ms: Forecast | None = None
    errors: tuple[ModelError, ...] = ()
    assumptions: tuple[str, ...] = ()


def report_of(done: Pass, policy: Policy, of: str, *, force: bool) -> Report:
    """What a pass came to; without forecasts where too few decisions were reproduced."""
    tally, figures = done.tally, done.figures
    made = Report(
        of=of,
        first=done.first,
        last=done.last,
        span_s=round(done.span_s, 3),
        events=done.events,
        events_per_s=round(done.events_per_s),
        decisions=tally.decided,
        reproduced=round(tally.share, 6),
        enough=tally.enough,
        kinds=_kinds(tally),
        not_decided=dict(tally.not_decided.most_common()),
        policy=policy,
        requests=figures.requests,
        errors=_errors(done),
        assumptions=tuple(assumptions(done, policy)),
    )
    if not tally.enough and not force:
        return made
    turns = figures.by_turn.count > 0
    times = figures.by_turn if turns else figures.by_request
    p50, p95, p99 = _times(done, turns=turns)
    return msgspec.structs.replace(
        made,
        computed_tokens=_sum(figures.computed, figures.unit_tokens),
        recomputed_tokens=_sum(figures.recomputed, figures.unit_tokens),
        moved_bytes=_sum(figures.bytes, figures.unit_bytes),
        host_tokens=_sum(figures.host_tokens, figures.unit_tokens),
        ttft_of=TURN if turns else REQUEST,
        ttft_count=times.count,
        ttft_p50_ms=p50,
        ttft_p95_ms=p95,
        ttft_p99_ms=p99,
    )


def _sum(one: Sum, unit: float) -> Forecast:
    band = one.band(unit) if one.changed else 0.0
    return Forecast(
        was=one.was,
        forecast=one.forecast,
        low=max(0.0, one.forecast - band),
        high=one.forecast + band,
        changed=one.changed,
    )


def _times(done: Pass, *, turns: bool) -> tuple[Forecast, Forecast, Forecast]:
    """Quantiles, with the median error of the predictions as the band."""
    figures = done.figures
    times = figures.by_turn if turns else figures.by_request
    move, compute = (figures.errors.at(what, 0.5) for what in (MOVE, PREFILL))
    was, mid = times.quantiles(0.0, 0.0), times.quantiles(1.0, 1.0)
    corners = [
        times.quantiles(1.0 + m, 1.0 + c) for m in (-move, move) for c in (-compute, compute)
    ]
    made = [
        Forecast(
            was=round(was[q], 3),
            forecast=round(mid[q], 3),
            low=round(min(mid[q], *(one[q] for one in corners)), 3),
            high=round(max(mid[q], *(one[q] for one in corners)), 3),
        )
        for q in range(3)
    ]
    return made[0], made[1], made[2]


def _kinds(tally: Tally) -> tuple[Reproduced, ...]:
    return tuple(
        Reproduced(
            kind=name,
            decided=kind.decided,
            same=kind.same,
            why=dict(kind.why.most_common()),
            examples=tuple(kind.examples),
        )
        for name, kind in sorted(tally.kinds.items())
    )


def _errors(done: Pass) -> tuple[ModelError, ...]:
    errors = done.figures.errors
    return tuple(
        ModelError(
            what=what,
            count=errors.count(what),
            p50=round(errors.at(what, 0.5), 4),
            p95=round(errors.at(what, 0.95), 4),
        )
        for what in (MOVE, PREFILL)
    )


def assumptions(done: Pass, policy: Policy) -> list[str]:
    """What a forecast takes for granted, in whole sentences."""
    figures, unit = done.figures, done.figures.unit_tokens
    told = [
        "requests come when they came and end when they ended: what waits for whom is not modelled",
        f"memory is simulated in pieces of {unit or 128} tokens, and what a request holds is taken "
        "at its admission, its answer included",
        "a forecast is what was measured plus the difference between two simulations, one under "
        "the recorded policy; the band is by how much that one misses what was measured, and for "
        "times the median error of the predictions",
        "what moving and computing take is what the ledger had taught by then",
    ]
    if not done.told_keeping:
        told.append(
            "some nodes do not say how they keep (they are older, or joined before the range): "
            "10 % of the pool for leases of 30 s and a watermark of 5 % are taken for them"
        )
    if policy.retain_max_s is not None:
        told.append(
            "of what clients asked to have kept the ledger knows what was granted: more than the "
            "recorded policy let them have (its --retain-max) cannot be forecast"
        )
    if policy.extra_decode:
        told.append(
            f"{policy.extra_decode} more decode nodes of the same kind get an even share of "
            "sessions, chosen by their names; a session stays where it is"
        )
    if figures.unnamed:
        told.append(
            f"{figures.unnamed:,} requests left no offer, so that nobody can tell what their "
            "prompts share: they only take memory"
        )
    if any(done.short):
        told.append(
            f"{done.short[0]:,} requests had no room in the simulated pools, {done.short[1]:,} "
            "under the other policy: they would have waited, which no time here shows"
        )
    if figures.unplaced:
        told.append(f"{figures.unplaced:,} requests ran on nodes that had not joined: left out")
    return told
