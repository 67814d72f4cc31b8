"""The written-out eliminations come to the bits of the general one, whatever is to be solved."""

from __future__ import annotations

import random

import pytest

from kvferry.core.cost_solve import fitted, solve, solve_some


def equations(rng: random.Random, count: int) -> tuple[list[float], list[float]]:
    """Sums as a fit has them, or any numbers at all, which may be singular."""
    kind = rng.randrange(4)
    if kind == 0:
        return [rng.uniform(-9, 9) for _ in range(count * count)], [
            rng.uniform(-9, 9) for _ in range(count)
        ]
    if kind == 1:
        few = (0.0, 1.0, -1.0, 2.0, 1e-301)
        return [rng.choice(few) for _ in range(count * count)], [
            rng.choice(few) for _ in range(count)
        ]
    sums, times = [0.0] * (count * count), [0.0] * count
    for _ in range(rng.randrange(1, 6)):
        parts = [1.0, *(rng.choice((0.0, rng.uniform(0, 300))) for _ in range(count - 1))]
        took = rng.uniform(0.1, 500)
        weight = took**-2 if kind == 2 else rng.random()
        for row, one in enumerate(parts):
            times[row] += weight * one * took
            for column, other in enumerate(parts):
                sums[row * count + column] += weight * one * other
    return sums, times


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_parts_are_solved_as_the_general_elimination_solves_them(count: int) -> None:
    rng = random.Random(count)
    for _ in range(3_000):
        sums, times = equations(rng, count)
        assert solve(sums, times) == solve_some(sums, times, range(count)), (sums, times)


def test_a_solution_solves() -> None:
    assert solve([2.0, 1.0, 1.0, 3.0], [5.0, 10.0]) == pytest.approx([1.0, 3.0], rel=1e-5)
    sums = [2.0, 1.0, 0.0, 1.0, 3.0, 1.0, 0.0, 1.0, 4.0]
    assert solve(sums, [4.0, 10.0, 14.0]) == pytest.approx([1.0, 2.0, 3.0], rel=1e-5)


def test_no_part_of_a_fit_is_negative() -> None:
    rng = random.Random(7)
    negative = 0
    for _ in range(2_000):
        sums, times = equations(rng, 3)
        if min(times) < 0 or sums[0] <= 0 or sums[4] <= 0:
            continue
        negative += min(solve(sums, times)) < 0
        assert min(fitted(sums, times)) >= 0.0, (sums, times)
    assert negative > 50
