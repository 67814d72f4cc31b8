"""Communicators are bounded: the least recently used idle one leaves, a busy one never."""

from __future__ import annotations

import threading

import pytest

from kvferry_backends.nccl import seats as seats_module
from kvferry_backends.nccl.seats import NoSeat, Seat, Seats


def nothing() -> None:
    return


class Holder:
    """Has a seat, and gives it up when it is asked to."""

    def __init__(self, seats: Seats) -> None:
        self.left = 0
        self.seat: Seat = seats.take(self.leave, nothing)

    def leave(self) -> None:
        self.left += 1
        self.seat.release()


def test_the_one_that_rests_longest_makes_room() -> None:
    seats = Seats(3)
    holders = [Holder(seats) for _ in range(3)]
    for nth in (1, 0, 2):
        holders[nth].seat.rest()
    assert holders[1].seat.wake()
    Holder(seats)
    assert [holder.left for holder in holders] == [1, 0, 0]
    Holder(seats)
    assert [holder.left for holder in holders] == [1, 0, 1]


def test_busy_ones_stay_and_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats_module, "WAIT_S", 0.05)
    seats = Seats(2)
    holders = [Holder(seats), Holder(seats)]
    with pytest.raises(NoSeat, match="raise the option communicators"):
        Holder(seats)
    assert [holder.left for holder in holders] == [0, 0]


def test_a_wait_ends_when_the_transfer_does() -> None:
    seats = Seats(1)
    Holder(seats)

    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        seats.take(nothing, check)


def test_who_was_asked_to_leave_does_not_wake_up() -> None:
    seats = Seats(1)
    asked = threading.Event()
    first = seats.take(asked.set, nothing)
    first.rest()
    got: list[Seat] = []
    taker = threading.Thread(target=lambda: got.append(seats.take(nothing, nothing)))
    taker.start()
    assert asked.wait(10)
    assert not first.wake()
    assert not got
    first.release()
    taker.join(10)
    assert got
    first.release()
    with pytest.raises(TimeoutError):
        seats.take(nothing, _end)


def _end() -> None:
    raise TimeoutError
