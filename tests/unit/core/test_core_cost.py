"""What moving and computing cost, learned, and the choice between the two."""

from __future__ import annotations

import math
import random

import pytest

from kvferry.core.cost import (
    HYSTERESIS,
    LinkCost,
    PrefillCost,
    link_cost,
    predict_move_ms,
    predict_recompute_ms,
    worth_moving,
)


def link(*pairs: tuple[float, float]) -> LinkCost:
    """A link that took so many milliseconds for so many bytes."""
    cost = LinkCost()
    for size, time in pairs:
        assert cost.observe(size, time)
    return cost


def prefill(*seen: tuple[int, int, float]) -> PrefillCost:
    """A node that computed tokens, after those before, in milliseconds."""
    cost = PrefillCost()
    for tokens, before, time in seen:
        assert cost.observe(tokens, before, time)
    return cost


def test_nothing_observed_predicts_nothing() -> None:
    assert LinkCost().predict(5) is None
    assert predict_move_ms(None, 5) is None
    assert predict_move_ms(LinkCost(), 5) is None
    assert predict_recompute_ms(None, 5) is None
    assert predict_recompute_ms(PrefillCost(), 5) is None


def test_floor_and_rate_are_told_apart() -> None:
    sizes = [1_000_000, 9_000_000, 4_000_000, 20_000_000, 500_000] * 2
    cost = link(*[(size, 5.0 + size / 1e6) for size in sizes])
    assert cost.floor_ms() == pytest.approx(5.0, rel=0.05)
    assert cost.predict(50e6) == pytest.approx(55.0, rel=0.02)
    assert predict_move_ms(cost, 50_000_000, queue_ms=7.0) == pytest.approx(62.0, rel=0.02)


def test_equal_amounts_have_no_floor() -> None:
    cost = link(*[(1_000, 4.0)] * 20)
    assert cost.floor_ms() == pytest.approx(0.0, abs=0.1)
    assert cost.predict(2_000) == pytest.approx(8.0, rel=0.02)


def test_noise_never_makes_large_moves_free() -> None:
    cost = link((1e6, 5.0), (8e6, 4.0), (16e6, 3.0))
    predicted = cost.predict(1e9)
    assert predicted is not None
    assert predicted > 50.0


def test_the_noise_of_single_moves_is_averaged_and_known() -> None:
    rng = random.Random(3)
    cost = LinkCost()
    for _ in range(200):
        size = rng.uniform(1e6, 40e6)
        cost.observe(size, (2.0 + size / 1e6) * rng.lognormvariate(0.0, 0.15))
    assert cost.predict(20e6) == pytest.approx(22.0, rel=0.15)
    assert 0.08 < cost.fit.spread < 0.25
    assert 0 < cost.doubt(20e6) < cost.fit.spread / 2
    assert cost.doubt(400e6) > cost.doubt(20e6), "far beyond what was seen"


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_one_surprise_moves_a_link_and_its_shape_stays(factor: float) -> None:
    sizes = [1e6, 20e6, 4e6, 40e6] * 4
    cost = link(*[(size, 5.0 + size / 1e6) for size in sizes])
    cost.observe(10e6, factor * 15.0)
    assert cost.predict(10e6) == pytest.approx(factor * 15.0, rel=0.05)
    assert cost.predict(100e6) == pytest.approx(factor * 105.0, rel=0.1)
    assert cost.fit.weight <= 2.0


def test_other_sizes_are_no_surprise() -> None:
    cost = link(*[(1e6, 6.0)] * 10)  # Floor or rate: equal sizes cannot tell.
    for _ in range(2):
        cost.observe(100e6, 105.0)
        cost.observe(1e6, 6.0)
    assert cost.predict(1e6) == pytest.approx(6.0, rel=0.1)
    assert cost.predict(100e6) == pytest.approx(105.0, rel=0.1)
    assert cost.predict(50e6) == pytest.approx(55.0, rel=0.1)


def test_long_prompts_are_dearer_than_their_length() -> None:
    def took(tokens: int, before: int) -> float:
        pairs = ((before + tokens) ** 2 - before**2) / 2
        return 8.0 + 0.1 * tokens + 4e-6 * pairs

    seen = [(500, 0), (16_000, 0), (4_000, 0), (60_000, 0), (2_000, 50_000), (300, 8_000)] * 3
    cost = prefill(*[(n, before, took(n, before)) for n, before in seen])
    assert cost.predict(32_000) == pytest.approx(took(32_000, 0), rel=0.05)
    saved = predict_recompute_ms(cost, 40_000)
    # The fixed part is paid for the tail in any case, so it is not saved.
    assert saved == pytest.approx(took(40_000, 0) - 8.0, rel=0.05)
    later = predict_recompute_ms(cost, 20_000, start=20_000)
    first = predict_recompute_ms(cost, 20_000)
    assert saved is not None
    assert later is not None
    assert first is not None
    assert first + later == pytest.approx(saved)
    assert later > 1.2 * first


def test_one_length_says_nothing_of_what_attention_costs() -> None:
    cost = prefill(*[(900, 0, 150.0)] * 3)
    assert cost.predict(9_000) == pytest.approx(1_500.0, rel=0.01)


def test_a_few_slow_prefills_do_not_change_what_is_known() -> None:
    cost = prefill(*[(n, 0, n / 10) for n in (1_000, 8_000, 2_000, 4_000) * 5])
    before = cost.predict(4_000)
    assert before == pytest.approx(400.0, rel=0.02)
    cost.observe(4_000, 0, 4_000.0)
    assert cost.predict(4_000) == pytest.approx(400.0, rel=0.25)
    for _ in range(6):
        cost.observe(4_000, 0, 4_000.0)
    assert cost.predict(4_000) == pytest.approx(4_000.0, rel=0.1)


def test_small_prefills_teach_nothing() -> None:
    assert not PrefillCost().observe(10, 0, 50.0)


@pytest.mark.parametrize(
    ("amount", "time"),
    [
        (0, 1),
        (1, 0),
        (-1, 1),
        (1, -1),
        (math.nan, 1),
        (1, math.nan),
        (math.inf, 1),
        (1, math.inf),
        (1, 1e-300),
        (2**90, 1),
    ],
)
def test_broken_observations_teach_nothing(amount: float, time: float) -> None:
    cost = LinkCost()
    assert not cost.observe(amount, time)
    assert cost == LinkCost()


def test_any_order_of_extremes_stays_finite() -> None:
    rng = random.Random(5)
    cost, node = LinkCost(), PrefillCost()
    for _ in range(500):
        cost.observe(10 ** rng.uniform(0, 18), 10 ** rng.uniform(-3, 12))
        node.observe(rng.randint(64, 1 << 40), rng.randint(0, 1 << 40), 10 ** rng.uniform(-3, 12))
    for fit in (cost.fit, node.fit):
        assert all(math.isfinite(one) and one >= 0 for one in fit.coefficients)
        assert all(math.isfinite(one) for one in (*fit.sums, *fit.times, fit.spread, fit.bias))


def test_the_backend_in_use_counts_then_the_fastest_common_one() -> None:
    rates = {
        "d0>p0/tcp": link((10, 1)),
        "d0>p0/nixl": link((50, 1)),
        "d1>p0/tcp": link((99, 1)),
        "d0>p0/peer": LinkCost(),
    }
    every = ("tcp", "nixl", "peer")
    assert link_cost(rates, "d0", "p0", every) is rates["d0>p0/nixl"]
    assert link_cost(rates, "d0", "p0", every, chosen="tcp") is rates["d0>p0/tcp"]
    assert link_cost(rates, "d0", "p0", every, chosen="peer") is rates["d0>p0/nixl"]
    assert link_cost(rates, "d0", "p0", ("tcp",)) is rates["d0>p0/tcp"]
    assert link_cost(rates, "d0", "p0", ("peer",)) is None
    assert link_cost(rates, "p0", "d0", ("tcp",)) is None


def test_moving_is_worth_it_when_cheaper_or_unknown() -> None:
    assert worth_moving(31.0, 790.0)
    assert not worth_moving(790.0, 31.0)
    assert worth_moving(None, 31.0)
    assert worth_moving(790.0, None)


def test_amounts_unlike_any_seen_are_tried() -> None:
    assert not worth_moving(110.0, 100.0, unseen=0.02)
    assert worth_moving(110.0, 100.0, unseen=0.2)


def test_what_one_transfer_would_tell_no_more_of_is_not_unseen() -> None:
    cost = link(*[(20e6, 20.0), (40e6, 41.0)] * 4)
    assert cost.doubt(30e6) > 0
    assert cost.unseen(30e6) == 0.0
    assert 0 < cost.unseen(2e6) < cost.doubt(2e6), "is it all floor?"
    assert LinkCost().unseen(1e6) == 0.0


def test_near_equal_costs_keep_the_last_decision() -> None:
    band = HYSTERESIS * 100.0 - 1.0
    for move_ms in (100.0 - band, 100.0, 100.0 + band):
        assert worth_moving(move_ms, 100.0, before=True)
        assert not worth_moving(move_ms, 100.0, before=False)
    assert worth_moving(80.0, 100.0, before=False)
    assert not worth_moving(120.0, 100.0, before=True)
