"""What is learned of the gaps between turns."""

from __future__ import annotations

import pytest

from kvferry.core.retention_gaps import (
    NEVER_S,
    OPEN_MAX,
    GapModel,
    SessionGaps,
    learned,
    prior,
)


def talk(gaps: SessionGaps, session: str, pauses_s: list[float], start_ms: int = 0) -> int:
    """Turns of one second with these pauses between them; returns the end of the last."""
    now_ms = start_ms
    for number, pause_s in enumerate([0.0, *pauses_s]):
        began_ms = now_ms + int(pause_s * 1000)
        now_ms = began_ms + 1000
        gaps.turn(session, f"{session}-{number}", began_ms, now_ms, 100 * (number + 1))
    return now_ms


def test_without_samples_the_prior_speaks() -> None:
    model = prior()
    assert model.samples == 0
    assert model.stays_away(0.0) == 1.0
    assert 0.35 < model.stays_away(NEVER_S) < 0.45
    assert 20 < (model.median_s() or 0) < 60


def test_what_comes_often_becomes_likely() -> None:
    gaps = SessionGaps()
    for number in range(300):
        talk(gaps, f"s{number}", [10.0, 10.0])
    model = learned(gaps, 3_000)
    assert gaps.later.total == gaps.first.total == 300
    near, far = model.returns(0, 5, 20), model.returns(0, 60, 120)
    assert near > 0.5 > 0.05 > far
    assert model.returns(0, 5, 20) > 2 * prior().returns(0, 5, 20)


def test_those_who_stay_away_make_a_return_less_likely() -> None:
    came, stayed = SessionGaps(), SessionGaps()
    for number in range(200):
        talk(came, f"s{number}", [10.0])
        talk(stayed, f"s{number}", [10.0] if number % 4 == 0 else [])
    now_ms = 2_000_000
    assert learned(stayed, now_ms).returns(0, 0, 60, turns=1) < 0.4
    assert learned(came, now_ms).returns(0, 0, 60, turns=1) > 0.8
    # Those who have just left have not stayed away yet.
    assert learned(stayed, 1_000).returns(0, 0, 60, turns=1) > 0.8


def test_first_turns_and_later_ones_are_told_apart() -> None:
    gaps = SessionGaps()
    for number in range(400):
        talk(gaps, f"s{number}", [10.0] * 4 if number % 8 == 0 else [])
    model = learned(gaps, 3_000_000)
    assert model.returns(0, 0, 60, turns=1) < 0.3 < 0.6 < model.returns(0, 0, 60, turns=3)


def test_the_longer_it_lasts_the_less_is_left_of_a_short_gap() -> None:
    gaps = SessionGaps()
    for number in range(300):
        talk(gaps, f"s{number}", [3.0])
    model = learned(gaps, 5_000_000)
    fresh, stale = model.returns(0, 0, 30, turns=1), model.returns(20, 20, 50, turns=1)
    assert fresh > 4 * stale


@pytest.mark.parametrize("turn", ["r1", ""])
def test_both_engines_of_a_turn_are_one_turn(turn: str) -> None:
    gaps = SessionGaps()
    gaps.turn("s", turn, 0, 1000, 100)
    gaps.turn("s", turn, 1100, 2000, 100)
    assert gaps.first.total == 0
    gaps.turn("s", "r2" if turn else "", 12_000, 13_000, 160)
    assert gaps.first.total == 1
    assert learned(gaps, 13_000).returns(0, 7, 15, turns=1) > prior().returns(0, 7, 15, turns=1)


def test_parallel_requests_of_a_session_are_no_gap() -> None:
    gaps = SessionGaps()
    gaps.turn("s", "r1", 0, 5000, 100)
    gaps.turn("s", "r2", 1000, 6000, 200)
    assert gaps.first.total == gaps.later.total == 0


def test_a_session_that_was_ended_says_nothing_of_others() -> None:
    gaps = SessionGaps()
    for number in range(100):
        talk(gaps, f"s{number}", [10.0])
        talk(gaps, f"e{number}", [])
        gaps.ended(f"e{number}", 1_500)
    assert not any(name.startswith("e") for name in gaps.open)
    assert learned(gaps, 1_000).returns(0, 0, 60, turns=1) > 0.8


def test_what_is_remembered_is_bounded() -> None:
    gaps = SessionGaps()
    for number in range(OPEN_MAX + 50):
        gaps.turn(f"s{number}", f"r{number}", 0, 1000, 10)
    assert len(gaps.open) == OPEN_MAX
    gaps.turn("late", "r", int(2 * NEVER_S * 1000), int(2 * NEVER_S * 1000) + 5, 10)
    assert list(gaps.open) == ["late"]


def test_a_probability_is_one_whatever_is_asked() -> None:
    model = GapModel(first=prior().first, later=prior().later)
    for age in (-1.0, 0.0, 0.1, 30.0, NEVER_S, 1e9):
        for begin in (0.0, age, age + 1, 1e9):
            assert 0.0 <= model.returns(age, begin, begin + 30) <= 1.0
