"""The small equations beneath :mod:`kvferry.core.cost_fit`: two or three unknowns, on plain floats.

Every fold of a ledger solves two of them for each request and transfer, which is a good part of a
coordinator's start. So for all parts together the elimination is written out; it comes to the same
bits as the general one, in the same order of operations.
"""

from __future__ import annotations

from collections.abc import Sequence

GROWTH_MIN_SHARE = 0.25
"""The first growing part is at least this share of what it would be without the others, so that
noise cannot make large amounts look free."""
RIDGE = 1.0 + 1e-6
"""Parts that always grow alike cannot be told apart: the earlier one takes it all."""
TINY = 1e-300


def product(one: Sequence[float], other: Sequence[float]) -> float:
    """The sum of the products. Added up plainly: ``sum`` rounds otherwise from Python 3.12 on, and
    replicas of one ledger may run on different ones."""
    total = 0.0
    for at, value in enumerate(one):
        total += value * other[at]
    return total


def fitted(sums: Sequence[float], times: Sequence[float]) -> list[float]:
    """The fit: no coefficient negative, and the first growing one not next to nothing."""
    count = len(times)
    solved = solve(sums, times)
    if min(solved) < 0.0:
        solved = _without_negative(sums, times, solved)
    alone = times[1] / sums[count + 1] if sums[count + 1] > 0.0 else 0.0
    least = GROWTH_MIN_SHARE * alone
    if solved[1] < least:
        rest = times[0] - sums[1] * least
        return [max(0.0, rest / sums[0]), least, *([0.0] * (count - 2))]
    return solved


def _without_negative(
    sums: Sequence[float], times: Sequence[float], solved: list[float]
) -> list[float]:
    """The fit again, leaving out the most negative part until none is negative."""
    used = list(range(len(times)))
    while negative := [at for at in used if solved[at] < 0.0]:
        used.remove(min(negative, key=solved.__getitem__))
        solved = solve_some(sums, times, used)
    return solved


def solve(sums: Sequence[float], times: Sequence[float]) -> list[float]:
    """The equations of all parts; ``sums`` row after row."""
    count = len(times)
    if count == 2:
        return _solve_two(sums, times)
    if count == 3:
        return _solve_three(sums, times)
    return solve_some(sums, times, range(count))


def _solve_two(sums: Sequence[float], times: Sequence[float]) -> list[float]:
    a0, a1, b0, b1 = sums
    x, y = times
    a0, b1 = a0 * RIDGE, b1 * RIDGE
    if abs(b0) > abs(a0):
        a0, a1, x, b0, b1, y = b0, b1, y, a0, a1, x
    if abs(a0) >= TINY:
        factor = b0 / a0
        b1, y = b1 - factor * a1, y - factor * x
    second = y / b1 if abs(b1) >= TINY else 0.0
    first = (x - a1 * second) / a0 if abs(a0) >= TINY else 0.0
    return [first, second]


def _solve_three(sums: Sequence[float], times: Sequence[float]) -> list[float]:
    a0, a1, a2, b0, b1, b2, c0, c1, c2 = sums
    x, y, z = times
    a0, b1, c2 = a0 * RIDGE, b1 * RIDGE, c2 * RIDGE
    if abs(c0) > max(abs(a0), abs(b0)):
        a0, a1, a2, x, c0, c1, c2, z = c0, c1, c2, z, a0, a1, a2, x
    elif abs(b0) > abs(a0):
        a0, a1, a2, x, b0, b1, b2, y = b0, b1, b2, y, a0, a1, a2, x
    if abs(a0) >= TINY:
        factor = b0 / a0
        b1, b2, y = b1 - factor * a1, b2 - factor * a2, y - factor * x
        factor = c0 / a0
        c1, c2, z = c1 - factor * a1, c2 - factor * a2, z - factor * x
    if abs(c1) > abs(b1):
        b1, b2, y, c1, c2, z = c1, c2, z, b1, b2, y
    if abs(b1) >= TINY:
        factor = c1 / b1
        c2, z = c2 - factor * b2, z - factor * y
    third = z / c2 if abs(c2) >= TINY else 0.0
    second = (y - b2 * third) / b1 if abs(b1) >= TINY else 0.0
    first = (x - (a1 * second + a2 * third)) / a0 if abs(a0) >= TINY else 0.0
    return [first, second, third]


def solve_some(sums: Sequence[float], times: Sequence[float], used: Sequence[int]) -> list[float]:
    """Gauss's elimination over the parts in ``used``; the others get 0."""
    count = len(times)
    rows = [[sums[a * count + b] for b in used] + [times[a]] for a in used]
    for at in range(len(used)):
        rows[at][at] *= RIDGE
    size = len(used)
    for at in range(size):
        pivot = at
        for row in range(at + 1, size):
            if abs(rows[row][at]) > abs(rows[pivot][at]):
                pivot = row
        rows[at], rows[pivot] = rows[pivot], rows[at]
        first = rows[at]
        head = first[at]
        if abs(head) < TINY:
            continue
        for below in range(at + 1, size):
            under = rows[below]
            factor = under[at] / head
            for column in range(at, size + 1):
                under[column] -= factor * first[column]
    found = [0.0] * size
    for at in range(size - 1, -1, -1):
        row_at = rows[at]
        known = 0.0
        for column in range(at + 1, size):
            known += row_at[column] * found[column]
        head = row_at[at]
        found[at] = (row_at[size] - known) / head if abs(head) >= TINY else 0.0
    solved = [0.0] * count
    for at, part in enumerate(used):
        solved[part] = found[at]
    return solved
