"""Learned rates, predictions, and the choice between moving and computing."""

from __future__ import annotations

import math

import pytest

from kvferry.core.cost import (
    Rate,
    link_rate,
    predict_move_ms,
    predict_recompute_ms,
    worth_moving,
)


def learned(*pairs: tuple[float, float]) -> Rate:
    rate = Rate()
    for amount, time in pairs:
        assert rate.observe(amount, time)
    return rate


def test_nothing_observed_predicts_nothing() -> None:
    assert Rate().predict(5) is None
    assert predict_move_ms(None, 5) is None
    assert predict_move_ms(Rate(), 5) is None
    assert predict_recompute_ms(None, 5) is None
    assert predict_recompute_ms(Rate(), 5) is None


def test_floor_and_rate_are_told_apart() -> None:
    rate = learned(*[(size, 5.0 + size / 1_000.0) for size in (1_000, 9_000, 4_000, 20_000, 500)])
    assert rate.floor() == pytest.approx(5.0)
    assert rate.predict(50_000) == pytest.approx(55.0)
    assert predict_move_ms(rate, 50_000, queue_ms=7.0) == pytest.approx(62.0)


def test_equal_amounts_have_no_floor() -> None:
    rate = learned(*[(1_000, 4.0)] * 5)
    assert (rate.floor(), rate.predict(2_000)) == (0.0, 8.0)


def test_noise_never_makes_large_moves_free() -> None:
    rate = learned((1_000, 50.0), (8_000, 10.0), (16_000, 5.0))
    ratio = rate.time / rate.amount
    predicted = rate.predict(1_000_000)
    assert predicted is not None
    assert predicted >= 1_000_000 * ratio / 4


def test_the_mean_follows_a_change_and_the_variance_shows_it() -> None:
    rate = learned(*[(1_000, 1.0)] * 50)
    assert (rate.mean, rate.deviation()) == (1_000.0, 0.0)
    for _ in range(50):
        rate.observe(1_000, 2.0)
    assert rate.mean == pytest.approx(500, rel=0.05)
    assert rate.deviation() > 0


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
        (2**80, 1),
    ],
)
def test_broken_observations_teach_nothing(amount: float, time: float) -> None:
    rate = Rate()
    assert not rate.observe(amount, time)
    assert rate == Rate()


def test_the_fixed_part_of_a_prefill_cannot_be_saved() -> None:
    rate = learned(*[(tokens, 0.1 + tokens / 2_000.0) for tokens in (100, 4_000, 1_000, 2_000)])
    assert predict_recompute_ms(rate, 2_000) == pytest.approx(1_000.0)


def test_the_best_common_backend_is_taken() -> None:
    rates = {
        "d0>p0/tcp": learned((10, 1)),
        "d0>p0/nixl": learned((50, 1)),
        "d1>p0/tcp": learned((99, 1)),
        "d0>p0/peer": Rate(),
    }
    assert link_rate(rates, "d0", "p0", ("tcp", "nixl", "peer")) is rates["d0>p0/nixl"]
    assert link_rate(rates, "d0", "p0", ("tcp",)) is rates["d0>p0/tcp"]
    assert link_rate(rates, "d0", "p0", ("peer",)) is None
    assert link_rate(rates, "p0", "d0", ("tcp",)) is None


def test_moving_is_worth_it_when_cheaper_or_unknown() -> None:
    assert worth_moving(31.0, 790.0)
    assert not worth_moving(790.0, 31.0)
    assert worth_moving(None, 31.0)
    assert worth_moving(790.0, None)


def test_near_equal_costs_keep_the_last_decision() -> None:
    for move_ms in (90.0, 100.0, 110.0):
        assert worth_moving(move_ms, 100.0, before=True)
        assert not worth_moving(move_ms, 100.0, before=False)
    assert worth_moving(80.0, 100.0, before=False)
    assert not worth_moving(120.0, 100.0, before=True)
