"""Loads of conversations in rounds: each arm serves a share in every round, in an order that turns.

What drifts slowly on the host then hits all arms alike, and arms are compared within rounds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.bench.intervals import ratio
from tests.gpu.asking import prompt_tokens_by_source
from tests.gpu.families import Prompts, Turn
from tests.gpu.figures import Record, percentile
from tests.gpu.talks import Arm, Load, Talk

REFERENCE = "off"
TOKENS = {"prompt_tokens": "prompt", "local": "local", "pulled": "pulled", "computed": "computed"}
"""Names in kvferry's reports, and here."""


@dataclass(frozen=True)
class Share:
    """What one arm's conversations of one round saw."""

    first: list[Turn]
    later: list[Turn]
    took_s: float
    sources: dict[str, int]
    """Where P's prompt tokens came from, as vLLM counts them."""

    @property
    def per_s(self) -> float:
        return (len(self.first) + len(self.later)) / self.took_s

    @property
    def later_ms(self) -> float:
        """Median time to the first token of later turns."""
        return statistics.median(_ms(self.later))


class Rounds:
    """Measures loads over servers that are up."""

    def __init__(
        self, arms: Sequence[Arm], prompts: Prompts, record: Record, *, at_once: int
    ) -> None:
        self._arms = arms
        self._prompts = prompts
        self._record = record
        self._at_once = at_once

    def warm_up(self) -> None:
        """Let each arm that reuses pull once: what is set up at a first pull is in no figure."""
        talks = [(arm, Talk([(256, 8), (16, 2)], self._prompts)) for arm in self._arms if arm.reuse]
        for arm, talk in talks:
            talk.next_turn(arm)
            arm.family.forget_p()
            talk.next_turn(arm)

    def measure(self, load: Load) -> None:
        """All rounds; what is known is in the record, under the load's name, after each."""
        shares: dict[str, list[Share]] = {arm.name: [] for arm in self._arms}
        for number in range(len(load.shares)):
            shift = number % len(self._arms)
            for arm in [*self._arms[shift:], *self._arms[:shift]]:
                shares[arm.name].append(self._share(load, number, arm))
            self._record.put(load.name, figures(shares))

    def _share(self, load: Load, number: int, arm: Arm) -> Share:
        talks = [Talk(shape, self._prompts) for shape in load.shares[number]]
        before = prompt_tokens_by_source(arm.family.p)
        began_s = time.monotonic()
        with ThreadPoolExecutor(self._at_once) as pool:
            # The same order in each arm.
            for job in load.order(pool, talks, arm, random.Random(number)):
                job.result()
        took_s = time.monotonic() - began_s
        after = prompt_tokens_by_source(arm.family.p)
        return Share(
            first=[talk.turns[0] for talk in talks],
            later=[turn for talk in talks for turn in talk.turns[1:]],
            took_s=took_s,
            sources={name: count - before.get(name, 0) for name, count in after.items()},
        )


def figures(shares: dict[str, list[Share]]) -> dict[str, Any]:
    """Each arm over all rounds, and each arm over the one without reuse, round by round."""
    found: dict[str, Any] = {
        "rounds": min(map(len, shares.values())),
        "arms": {arm: _arm(served) for arm, served in shares.items()},
        "by_round": {
            arm: {
                "later_turns_median_ms": [round(share.later_ms, 1) for share in served],
                "requests_per_s": [round(share.per_s, 2) for share in served],
            }
            for arm, served in shares.items()
        },
    }
    if REFERENCE in shares:
        off = shares[REFERENCE]
        found["over_off"] = {
            arm: {
                "later_turns_median_ms": _over(
                    [s.later_ms for s in served], [s.later_ms for s in off]
                ),
                "requests_per_s": _over([s.per_s for s in served], [s.per_s for s in off]),
            }
            for arm, served in shares.items()
            if arm != REFERENCE
        }
    return found


def accounts(turns: Sequence[Turn]) -> dict[str, Any]:
    """kvferry's own reports of P's requests: how many pulled, their tokens, misses by reason.

    Empty without reports.
    """
    reports = [turn.report for turn in turns if turn.report]
    if not reports:
        return {}
    misses = Counter(str(report["miss"]).partition("@")[0] for report in reports if report["miss"])
    return {
        "requests": len(reports),
        "pulled": sum(report["pulled"] > 0 for report in reports),
        "tokens": {name: sum(r[key] for r in reports) for key, name in TOKENS.items()},
        "misses": dict(misses.most_common()),
    }


def _arm(served: Sequence[Share]) -> dict[str, Any]:
    first = [turn for share in served for turn in share.first]
    later = [turn for share in served for turn in share.later]
    sources: Counter[str] = Counter()
    for share in served:
        sources.update(share.sources)
    return {
        "all_turns_ms": _tail(_ms(first + later)),
        "later_turns_ms": _tail(_ms(later)),
        "requests": len(first) + len(later),
        "requests_per_s": round(
            (len(first) + len(later)) / sum(share.took_s for share in served), 2
        ),
        "p_tokens_by_source": dict(sources),
        "p_reports": {"first_turns": accounts(first), "later_turns": accounts(later)},
    }


def _over(values: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Median over rounds of value ÷ reference, its 95 % bootstrap interval, and the range."""
    ratios = [one / other for one, other in zip(values, reference, strict=True)]
    middle, bounds = ratio([ratios])
    return {
        "median": middle,
        "interval_95": bounds,
        "range": [round(f(ratios), 4) for f in (min, max)],
    }


def _ms(turns: Sequence[Turn]) -> list[float]:
    return [turn.ttft_s * 1000 for turn in turns]


def _tail(values: list[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {name: round(percentile(values, share), 1) for name, share in shares.items()}
