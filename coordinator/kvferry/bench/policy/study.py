"""All policies with all budgets over one trace, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvferry.bench.policy.policies import HOSTED, INFINITE
from kvferry.bench.policy.run import Plan, Run
from kvferry.bench.policy.shapes import Shape
from kvferry.bench.policy.sizes import Sizes, sizes_of
from kvferry.core.retention_value import Rules
from kvferry.replay.trace import BLOCK_TOKENS, Turn, distinct_blocks

GOAL = 0.9
"""Share of the infinite cache's hits that is to be reached."""
STALL_SHARE_MAX = 0.01
"""A policy does not stall while fewer requests than this share wait for memory."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared."""

    turns: Sequence[Turn]
    shape: Shape
    prefill: int
    decode: int
    policies: Sequence[str]
    budgets: Sequence[int]
    """Bytes of the whole fleet."""
    ttl_s: float

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Policy and budget of every run; the infinite cache has none."""
        others = [policy for policy in self.policies if policy != INFINITE]
        pairs = [(policy, budget) for budget in self.budgets for policy in others]
        return [(INFINITE, 0), *pairs]

    def check(self) -> None:
        """Whether every run is possible.

        Raises:
            ConfigError: a budget is too small.
        """
        for policy, budget in self.runs:
            self._plan(policy, budget)

    def document(
        self, begin: Callable[[str, int], None], ended: Callable[[], None]
    ) -> dict[str, Any]:
        """Run everything; ``begin`` hears of each run, ``ended`` of each answered request."""
        rows = self._rows(begin, ended)
        shareable = sum(len(turn.chain) for turn in self.turns)
        blocks = distinct_blocks(self.turns)
        return {
            "trace": {
                "requests": len(self.turns),
                "sessions": len({turn.session for turn in self.turns}),
                "prompt_tokens": sum(turn.tokens for turn in self.turns),
                "shareable_tokens": shareable * BLOCK_TOKENS,
                "distinct_tokens": blocks * BLOCK_TOKENS,
                "kv_bytes": blocks * BLOCK_TOKENS * self.shape.token_bytes,
            },
            "fleet": {
                "shape": self.shape.name,
                "prefill": self.prefill,
                "decode": self.decode,
                "token_bytes": self.shape.token_bytes,
                "ttl_s": self.ttl_s,
            },
            "rows": rows,
            "comes_to": comes_to(rows),
        }

    def _rows(
        self, begin: Callable[[str, int], None], ended: Callable[[], None]
    ) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for policy, budget in self.runs:
            begin(policy, budget)
            rows.append(self._row(policy, budget, ended))
            best = rows[0]["hit_tokens"]
            rows[-1]["share_of_infinite"] = round(rows[-1]["hit_tokens"] / best, 4) if best else 1.0
        return rows

    def _row(self, policy: str, budget: int, ended: Callable[[], None]) -> dict[str, Any]:
        plan = self._plan(policy, budget)
        run = Run(plan, self.turns)
        figures = run.go(ended)
        block_bytes = run.shared.block_bytes
        return {
            "policy": policy,
            "budget_bytes": budget,
            "hbm_bytes_per_engine": plan.sizes.hbm * block_bytes,
            "host_bytes_per_engine": plan.sizes.host * block_bytes,
            **figures.document(run.shared.links.bytes),
        }

    def _plan(self, policy: str, budget: int) -> Plan:
        return Plan(
            policy=policy,
            shape=self.shape,
            prefill=self.prefill,
            decode=self.decode,
            sizes=self._sizes(policy, budget),
            ttl_s=self.ttl_s,
            rules=Rules(),
        )

    def _sizes(self, policy: str, budget: int) -> Sizes:
        if policy == INFINITE:
            return Sizes(hbm=0)
        engines, hosted = self.prefill + self.decode, policy in HOSTED
        return sizes_of(budget, engines, self.shape, self.turns, host=hosted)


def comes_to(rows: Sequence[dict[str, Any]]) -> list[str]:
    """For each policy from which budget on it reaches the goal without making requests wait."""
    lines = []
    for policy in dict.fromkeys(row["policy"] for row in rows if row["policy"] != INFINITE):
        of_it = [row for row in rows if row["policy"] == policy]
        good = [row for row in of_it if row["share_of_infinite"] >= GOAL and not stalls(row)]
        best = max(row["share_of_infinite"] for row in of_it)
        if good:
            least = min(row["budget_bytes"] for row in good)
            what = f"has {GOAL:.0%} of the infinite cache's hits from {least / 1e12:,.2f} TB on"
        else:
            what = (
                f"does not have {GOAL:.0%} of the infinite cache's hits with any of these budgets"
            )
        waits = [row for row in of_it if stalls(row)]
        most = max((row["budget_bytes"] for row in waits), default=0)
        stalled = f"; requests wait for memory up to {most / 1e12:,.2f} TB" if waits else ""
        lines.append(f"{policy} {what}{stalled} (best {best:.1%})")
    return lines


def stalls(row: dict[str, Any]) -> bool:
    """Whether a policy kept requests waiting for memory that it held."""
    return bool(row["requests_delayed"] > STALL_SHARE_MAX * row["requests"])
