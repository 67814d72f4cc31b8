"""What status says of leases and sessions."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.core.support import retained, started

from kvferry.cli.leaseview import print_leases, print_sessions
from kvferry.core.events import Evicted, RequestEnded
from kvferry.core.state import SpaceState
from kvferry.core.story import describe
from kvferry.replay.status import summarize_space


@pytest.fixture
def space() -> SpaceState:
    """Leases of every kind, and two sessions of which one came back after ten seconds."""
    ledger, (p0, d0) = started("p0", "d0")
    p0.write(
        retained("p.1", count=20),
        retained("p.1L2", count=20, tier="hbm", ttl_ms=30_000, why="handover"),
        retained("p.3L4", count=10, tier="hbm", ttl_ms=30_000, why="handover"),
    )
    d0.write(
        retained("d.1L2", count=40, tier="hbm", ttl_ms=30_000, why="expected"),
        retained("d.3L4", count=40, tier="hbm", ttl_ms=30_000),
        Evicted(offer="d.3L4", rev=2, keep=0, reason="pressure"),
    )
    for turn, session in enumerate(("s", "t", "s")):
        d0.write(RequestEnded(request=f"r{turn}", external_id=f"r{turn}", session=session))
        ledger.seq += 1_000
    return ledger.space


def test_leases_are_told_by_tier_and_by_what_they_are_for(space: SpaceState) -> None:
    document = summarize_space(space)
    assert document["leases"] == {
        "hbm": {
            "expected": {"leases": 1, "blocks": 40},
            "handover": {"leases": 2, "blocks": 30},
        }
    }
    assert document["evictions"] == {"pressure": 1}
    assert msgspec.json.decode(msgspec.json.encode(document)) == document


def test_what_was_learned_of_sessions_is_told(space: SpaceState) -> None:
    sessions = summarize_space(space)["sessions"]
    assert (sessions["waited_for"], sessions["gaps"]) == (2, 1)
    first = sessions["after_first_turn"]
    assert first["observed"] == 1
    within = list(first["returns_within_s"].values())
    assert 0 < within[0] < within[1] < within[2] <= first["returns"] < 1


def test_people_read_it(space: SpaceState, capsys: pytest.CaptureFixture[str]) -> None:
    document = summarize_space(space)
    print_leases(document["leases"], document["evictions"])
    print_sessions(document["sessions"])
    text = capsys.readouterr().out
    assert "leased in hbm: 2 runs, 30 blocks, for an engine that is about to read them" in text
    assert "leased in hbm: 1 runs, 40 blocks, for a session whose next turn is likely" in text
    assert "offers and leases that ended or shrank: 1 pressure" in text
    assert "sessions: 2 may come back; learned from 1 gaps between turns:" in text
    assert "after first turns 6" in text


def test_nothing_is_said_of_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    document = summarize_space(SpaceState())
    print_leases(document["leases"], document["evictions"])
    print_sessions(document["sessions"])
    assert capsys.readouterr().out == ""


def test_a_lease_s_story_says_what_it_is_for() -> None:
    lease = retained("p.1L2", tier="hbm", ttl_ms=30_000, why="handover", request="r1")
    assert describe("p0", lease) == (
        "p0 leases in GPU memory 20 blocks as p.1L2 rev 1 of request r1 for 30.0 s, until another "
        "engine has read it"
    )
