"""After a link has changed fourfold, choosing by what is learned costs little more than knowing.

The first request after it cannot know, and what that one costs hangs on how long it happens to be;
it counts in what is lost at once, and not in what is lost by learning."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import mean, median

import pytest
from tests.unit.core import regret as pair
from tests.unit.core.regret import World, after_change, bytes_per_ms, first_met

from kvferry.core import cost, trials
from kvferry.core.cost import LinkCost

SEEDS = range(40)
LOST_MAX = 0.10
"""Of the best possible cost."""
STEADY_MAX = 0.05
"""While nothing changes."""
SINGLE_MAX = 0.25
"""In no single seed more than that."""
CHANGES = [
    pytest.param(before, factor, id=f"{before:g}-{factor:g}x")
    for before, factor in [
        (0.3, 0.25),
        (0.5, 0.25),
        (0.8, 0.25),
        (1.2, 4),
        (2.0, 4),
        (3.0, 4),
        (5.0, 4),
    ]
]


def p95(values: Iterable[float]) -> float:
    """What all but one in twenty stay below."""
    ordered = sorted(values)
    return ordered[len(ordered) * 95 // 100 - 1]


@pytest.mark.parametrize("noise", [0.1, 0.2])
@pytest.mark.parametrize(("before", "factor"), CHANGES)
def test_a_fourfold_change_costs_little_more_than_its_first_request(
    before: float, factor: float, noise: float
) -> None:
    runs = [after_change(before, factor, seed, noise) for seed in SEEDS]
    assert max(one.before for one in runs) < SINGLE_MAX
    assert p95(one.before for one in runs) < STEADY_MAX
    assert median(one.at_once for one in runs) < LOST_MAX
    learned = [one.learned for one in runs]
    assert mean(learned) < LOST_MAX / 2
    assert p95(learned) < LOST_MAX
    assert max(learned) < SINGLE_MAX
    assert mean(one.next20 for one in runs) < LOST_MAX / 2
    assert mean(one.settled for one in runs) < LOST_MAX / 2
    assert p95(one.next20 for one in runs) < LOST_MAX
    assert p95(one.settled for one in runs) < STEADY_MAX


def test_whole_prefixes_that_move_in_hope_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the bounds above: any doubt is a reason to move."""
    monkeypatch.setattr(LinkCost, "unseen", LinkCost.doubt)
    slower = [after_change(0.5, 0.25, seed, 0.2) for seed in SEEDS]
    assert p95(one.learned for one in slower) > LOST_MAX
    dear = [after_change(2.0, 4, seed, 0.2) for seed in SEEDS]
    assert p95(one.before for one in dear) > STEADY_MAX


@pytest.mark.parametrize("noise", [0.1, 0.2])
def test_a_new_link_that_is_far_too_dear_costs_little_more_than_its_first_request(
    noise: float,
) -> None:
    runs = [first_met(5.0, seed, noise) for seed in SEEDS]
    assert p95(one.learned for one in runs) < LOST_MAX


def test_where_unseen_sizes_are_hoped_for_too_much_a_new_link_costs_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost, "UNSEEN_MAX", 3.0)
    runs = [first_met(5.0, seed, 0.1) for seed in SEEDS]
    assert p95(one.learned for one in runs) > LOST_MAX


def test_without_trials_a_link_that_became_fast_is_never_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "TRIAL_SHARE", 0.0)
    runs = [after_change(2.0, 4, seed) for seed in SEEDS]
    assert mean(one.learned for one in runs) > 3 * LOST_MAX
    assert mean(one.settled for one in runs) > 3 * LOST_MAX


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
