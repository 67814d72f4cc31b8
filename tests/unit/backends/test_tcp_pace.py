"""How chunks are cut into calls: one by one until a call was slow, then many together."""

from __future__ import annotations

import itertools

import pytest

from kvferry_backends.tcp import pace
from kvferry_backends.tcp.pace import Calls, Pace

RANGES = [(at, at + 1) for at in range(10)]


def cut(calls: Calls) -> list[int]:
    """How many chunks each call got; all of them, in order."""
    made: list[list[tuple[int, int]]] = []
    calls.run(RANGES, made.append)
    assert list(itertools.chain(*made)) == RANGES
    return [len(some) for some in made]


def test_quick_calls_have_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLOW_CALL_S", 60.0)
    known = Pace()
    assert cut(Calls(4, known)) == [1] * 10
    assert not known.dear


def test_after_a_slow_one_chunks_share_calls_also_in_the_next_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "SLOW_CALL_S", -1.0)
    known = Pace()
    assert cut(Calls(4, known)) == [1, 4, 4, 1]
    assert known.dear
    assert cut(Calls(4, known)) == [4, 4, 2]


def test_a_transfer_without_a_slow_call_makes_the_next_one_try_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "SLOW_CALL_S", 60.0)
    known = Pace()
    known.dear = True
    first = Calls(4, known)
    first.timed(lambda: None)
    assert cut(first) == [4, 4, 2]
    assert cut(Calls(4, known)) == [1] * 10


def test_a_slow_request_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(4)
    monkeypatch.setattr(pace, "SLOW_CALL_S", -1.0)
    calls.timed(lambda: None)
    assert cut(calls) == [4, 4, 2]
