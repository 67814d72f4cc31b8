"""A fork burst: one node has a long prefix, eight others want it at once for forty requests."""

from __future__ import annotations

from statistics import mean

import pytest
from tests.unit.core.fork import Burst

SEEDS = range(6)


def run(*, waits: bool = True, **given: object) -> tuple[float, list[Burst]]:
    """Mean time until all have it, and the bursts."""
    bursts = [Burst(waits=waits, seed=seed, **given) for seed in SEEDS]  # type: ignore[arg-type]
    return mean(burst.run() for burst in bursts), bursts


@pytest.mark.parametrize("known", [True, False])
def test_new_holders_become_sources(known: bool) -> None:
    whole_ms, bursts = run(known=known)
    # Where computing takes 4 s the last of eight in a row would rather compute.
    at_once_ms, plain = run(waits=False, known=known, prefill_ms=8_000.0)
    for burst in bursts:
        assert len(burst.held_at) == 9
        assert burst.recomputed == []
        assert burst.sent.total() == 8, "one transfer for each node"
        assert burst.sent["holder"] <= 4
        assert max(burst.most_at_once.values()) <= 2
    # Negative control: all at once from the one holder, which is slower.
    assert all(burst.sent == {"holder": 8} for burst in plain)
    assert whole_ms < 0.7 * at_once_ms


def test_the_time_grows_with_the_logarithm_of_the_nodes() -> None:
    eight_ms, _ = run(nodes=7, requests=7)
    many_ms, bursts = run(nodes=31, requests=100)
    assert many_ms < 2.2 * eight_ms, "five doublings instead of three"
    assert all(burst.recomputed == [] for burst in bursts)


def test_where_waiting_takes_longer_than_computing_nobody_waits() -> None:
    _, bursts = run(link_bytes_per_ms=2e6)
    for burst in bursts:
        # Two in turn would take longer than computing: one pulls, the others compute.
        assert burst.sent == {"holder": 1}
        assert len(burst.recomputed) > 20
        assert sum(burst.waited.values()) == 0.0


def test_waiting_is_bounded_for_each_request() -> None:
    _, bursts = run()
    for burst in bursts:
        assert max(burst.waited.values()) <= 3_000.0
        assert burst.asked <= 40 * 12
