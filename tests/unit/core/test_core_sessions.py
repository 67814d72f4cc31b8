"""What the fold learns of sessions and says of leases."""

from __future__ import annotations

import math

import pytest
from tests.unit.core.support import Ledger, retained, started

from kvferry.core.digest import digest
from kvferry.core.events import RequestEnded
from kvferry.core.snapshot import decode, encode


def ended(session: str, turn: str, prompt: int, **more: object) -> RequestEnded:
    return RequestEnded(  # type: ignore[arg-type]
        request=f"{turn}-x", external_id=turn, session=session, prompt_tokens=prompt, **more
    )


def talk(turns: int = 3) -> Ledger:
    """Turns of one session over two engines; the stream stores a message every 10 ms."""
    ledger, (p0, d0) = started("p0", "d0")
    for turn in range(turns):
        ledger.seq += 1_000  # Ten seconds pass.
        p0.write(ended("s", f"r{turn}", 100 * turn + 100, total_ms=500.0, computed_tokens=10))
        ledger.seq += 100
        d0.write(ended("s", f"r{turn}", 100 * turn + 100, total_ms=900.0))
    return ledger


def test_gaps_are_learned_from_the_end_of_a_turn_to_the_begin_of_the_next() -> None:
    sessions = talk(3).space.sessions
    assert sessions.first.total == 1
    assert sessions.later.total == 1
    assert sessions.open["s"].turns == 3
    # Ten seconds lie between two ends, half a second of it is the next prefill.
    (bin_,) = [place for place, count in enumerate(sessions.first.returned) if count]
    assert 8 <= 0.25 * 2 ** ((bin_ - 1) / 2) <= 9.5 <= 0.25 * 2 ** (bin_ / 2)


def test_a_session_that_is_over_is_waited_for_no_longer() -> None:
    ledger, (p0,) = started("p0")
    p0.write(ended("s", "r1", 100))
    assert "s" in ledger.space.sessions.open
    p0.write(ended("s", "r2", 200, session_over=True))
    assert not ledger.space.sessions.open


def test_requests_without_a_session_teach_nothing_of_gaps() -> None:
    ledger, (p0,) = started("p0")
    for turn in range(3):
        p0.write(ended("", f"r{turn}", 100))
    assert not ledger.space.sessions.open


@pytest.mark.parametrize("odd", [-5.0, math.nan, math.inf, 1e300])
def test_an_odd_duration_is_no_duration(odd: float) -> None:
    ledger, (p0,) = started("p0")
    p0.write(ended("s", "r1", 100, total_ms=odd, ttft_ms=odd))
    p0.write(ended("s", "r2", 200, total_ms=odd))
    assert ledger.space.sessions.first.total == 1


def test_what_was_learned_survives_a_snapshot_and_counts_in_the_digest() -> None:
    ledger = talk(3)
    again = decode(encode(ledger.state))
    assert digest(again) == digest(ledger.state)
    assert list(again.spaces.items()) == list(ledger.state.spaces.items())
    again.space(next(iter(again.spaces))).sessions.first.total += 1
    assert digest(again) != digest(ledger.state)


def test_the_state_knows_what_a_lease_is_for() -> None:
    ledger, (p0,) = started("p0")
    p0.write(retained("o1L2", tier="hbm", ttl_ms=30_000, why="handover"))
    p0.write(retained("o1L2", rev=2, tier="hbm", ttl_ms=9_000, why="expected"))
    offer = ledger.space.offers["o1L2"]
    assert (offer.why, offer.ttl_ms) == ("expected", 9_000)
