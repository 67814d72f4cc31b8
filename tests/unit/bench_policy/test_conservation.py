"""What must hold for every policy on every trace."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.bench_policy.small import Line, asks, run

from kvferry.bench.policy.policies import HOSTED, INFINITE, POLICIES
from kvferry.bench.policy.run import Run
from kvferry.core.retention_settings import LEASE_BUDGET
from kvferry.replay.nodes.pool import BlockPool

EXAMPLES = int(os.environ.get("POLICY_EXAMPLES", "40"))
BLOCKS_MAX = 8
ANSWER_MAX = 600


@st.composite
def traces(draw: st.DrawFn) -> list[Line]:
    """Sessions that go on, fork, or come once; prompts share what they have in common."""
    lines: list[Line] = []
    chains: list[list[int]] = [[]]
    fresh, at_s = 1, 0.0
    for _ in range(draw(st.integers(1, 25))):
        at_s += draw(st.sampled_from((0.5, 2.0, 20.0, 90.0, 500.0)))
        begin = draw(st.sampled_from(chains))
        kept = begin[: draw(st.integers(0, len(begin)))] if draw(st.booleans()) else begin
        adds = draw(st.integers(0, BLOCKS_MAX - len(kept))) if len(kept) < BLOCKS_MAX else 0
        chain = [*kept, *range(fresh, fresh + adds)]
        fresh += adds
        chains.append(chain)
        lines.append(asks(at_s, chain, draw(st.integers(1, ANSWER_MAX))))
    return lines


def least_blocks(lines: list[Line]) -> int:
    return max(-(-(tokens + answer) // 512) for _, tokens, answer, _ in lines)


class Watched(BlockPool):
    """Remembers whether it ever held more than it has."""

    most = 0

    def take(self, chain: Any, unnamed: int = 0) -> list[int]:
        assert self.missing(chain, unnamed) <= self.free
        taken = super().take(chain, unnamed)
        type(self).most = max(type(self).most, self.used - self.capacity)
        return taken


def settled(one: Run) -> None:
    """Nobody holds anything once all is answered, except what a policy keeps on purpose."""
    for engine in one.engines:
        pool = engine.pool
        assert pool.used <= pool.capacity
        assert engine.in_flight == 0
        host = engine.keeper.host
        if host is not None:
            assert host.used <= host.capacity


@settings(max_examples=EXAMPLES, derandomize=True, deadline=None)
@given(traces(), st.sampled_from([p for p in POLICIES if p != INFINITE]), st.data())
def test_tokens_are_conserved_memory_is_kept_and_nothing_beats_infinite(
    lines: list[Line], policy: str, data: st.DataObject
) -> None:
    hbm = least_blocks(lines) + data.draw(st.integers(0, 20), label="more")
    host = data.draw(st.integers(0, 30), label="host") if policy in HOSTED else 0
    prefill, decode = (data.draw(st.integers(1, 3), label=name) for name in ("prefill", "decode"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvferry.bench.policy.engine.BlockPool", Watched)
        Watched.most = 0
        one = run(policy, lines, hbm=hbm, host=host, prefill=prefill, decode=decode)
    best = run(INFINITE, lines, hbm=0, prefill=prefill, decode=decode).shared.figures
    figures = one.shared.figures

    assert figures.prompt_tokens == sum(tokens for _, tokens, _, _ in lines)
    assert figures.hit_tokens + figures.computed_tokens == figures.prompt_tokens
    assert len(figures.ttft_s) == len(lines)
    assert min(figures.ttft_s) > 0
    assert Watched.most <= 0
    settled(one)
    assert figures.hit_tokens <= best.hit_tokens
    assert best.hit_tokens - figures.hit_tokens == figures.recomputed_tokens
    again = run(policy, lines, hbm=hbm, host=host, prefill=prefill, decode=decode).shared
    assert again.figures == figures
    assert again.links.bytes == one.shared.links.bytes


def test_leases_are_taken_and_keep_to_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    hbm, most = 60, 0

    class Held(BlockPool):
        def hold(self, chain: Any) -> None:
            nonlocal most
            super().hold(chain)
            most = max(most, len(chain))

    monkeypatch.setattr("kvferry.bench.policy.engine.BlockPool", Held)
    # Six sessions come back every minute and grow; others come once, and fill the memory meanwhile.
    lines = []
    for n in range(120):
        lines.append(asks(10.0 * n, [100 * (n % 6) + k for k in range(1 + n // 24)]))
        lines.append(asks(10.0 * n + 5, range(10_000 + 10 * n, 10_008 + 10 * n)))
    one = run("leases", lines, hbm=hbm)
    plain = run("lru", lines, hbm=hbm)
    assert 0 < most <= hbm * LEASE_BUDGET
    assert one.shared.figures.hit_tokens > plain.shared.figures.hit_tokens
    assert one.shared.figures.delayed == 0
