"""After a link has changed fourfold, choosing by what is learned costs little more than knowing."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import pytest
from tests.unit.core import regret as pair
from tests.unit.core.regret import World, after_change, bytes_per_ms

from kvferry.core import trials

SEEDS = range(12)
SETTLED_MAX = 0.10
"""Of the best possible cost, once 20 requests have come since the change."""
CHANGES = [
    pytest.param(before, factor, id=f"{before:g}-{factor:g}x")
    for before, factor in [(0.3, 0.25), (0.5, 0.25), (0.8, 0.25), (1.2, 4), (2.0, 4), (3.0, 4)]
]


@pytest.mark.parametrize("noise", [0.1, 0.2])
@pytest.mark.parametrize(("before", "factor"), CHANGES)
def test_twenty_requests_after_a_fourfold_change_the_choice_is_good_again(
    before: float, factor: float, noise: float
) -> None:
    runs = [after_change(before, factor, seed, noise) for seed in SEEDS]
    steady, first, settled = ([run[part] for run in runs] for part in range(3))
    assert max(steady) < SETTLED_MAX
    assert max(settled) < SETTLED_MAX
    # What the change costs until it is noticed: somebody has to be the first to meet it.
    assert mean(first) < 2 * SETTLED_MAX


def test_without_trials_a_link_that_became_fast_is_never_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "TRIAL_SHARE", 0.0)
    settled = [after_change(2.0, 4, seed)[2] for seed in SEEDS]
    assert mean(settled) > 3 * SETTLED_MAX


def test_near_break_even_the_choice_does_not_flap() -> None:
    flips = []
    for seed in SEEDS:
        policy = pair.Policy(World(bytes_per_ms=bytes_per_ms(1.0)), seed)
        pair.regret(policy, 60)
        chosen = []
        for _ in range(60):
            one = policy.choose(1_000)
            chosen.append(one.worth)
            policy.carry_out(one, 1_000)
        flips.append(sum(a != b for a, b in pairwise(chosen)))
    assert mean(flips) < 6, "a coin would flip 30 times"


def test_the_same_seed_gives_the_same_history() -> None:
    assert after_change(0.5, 0.25, 3) == after_change(0.5, 0.25, 3)
    assert after_change(0.5, 0.25, 3) != after_change(0.5, 0.25, 4)
