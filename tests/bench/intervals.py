"""Ratios of paired measurements that were taken in groups, with their uncertainty."""

from __future__ import annotations

import random
import statistics

RESAMPLES = 2_000


def ratio(groups: list[list[float]]) -> tuple[float, list[float]]:
    """The median of all ratios, and its 95 % interval.

    A group is what one set of processes measured: two equal processes differ by a few per cent for
    all their life, so groups are drawn first and ratios within them after that.
    """
    draw = random.Random(0)
    medians = sorted(
        statistics.median(
            value
            for group in draw.choices(groups, k=len(groups))
            for value in draw.choices(group, k=len(group))
        )
        for _ in range(RESAMPLES)
    )
    bounds = [round(medians[int(RESAMPLES * q)], 4) for q in (0.025, 0.975)]
    return round(statistics.median(value for group in groups for value in group), 4), bounds
