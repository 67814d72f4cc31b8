"""A bounded number of communicators: the least recently used idle one makes room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvferry.errors import BackendError

WAIT_S = 1.0
"""Longest that somebody waits for a seat: an idle communicator is gone in milliseconds."""
CHECK_EVERY_S = 0.02


class NoSeat(BackendError):
    """Every communicator is busy."""


class Seat:
    """The right to have a communicator. Made by :meth:`Seats.take`, busy at first."""

    def __init__(self, seats: Seats, leave: Callable[[], None]) -> None:
        self._seats = seats
        self.leave = leave
        self.rests_since = 0.0
        """When its communicator became idle; 0 while it is busy."""
        self.leaves = False
        """Whether it has been asked to leave."""

    def rest(self) -> None:
        """The communicator is idle from now on, and may be asked to leave."""
        self._seats.rest(self)

    def wake(self) -> bool:
        """Make it busy again; False if it has to leave instead."""
        return self._seats.wake(self)

    def release(self) -> None:
        """The communicator is gone. May be called twice."""
        self._seats.release(self)


class Seats:
    """At most ``most`` communicators at a time. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._taken: list[Seat] = []

    def take(self, leave: Callable[[], None], check: Callable[[], None]) -> Seat:
        """A seat for a new communicator.

        Args:
            leave: called on the thread of another who needs this seat while it rests; leads to
                its release, at once or soon.
            check: raises what ends the wait early.

        Raises:
            NoSeat: none could be had within :data:`WAIT_S`.
        """
        give_up = time.monotonic() + WAIT_S
        while True:
            with self._changed:
                if len(self._taken) < self._most:
                    seat = Seat(self, leave)
                    self._taken.append(seat)
                    return seat
                least = self._least_used()
            if least is not None:
                least.leave()
            check()
            if time.monotonic() > give_up:
                raise NoSeat(
                    f"all {self._most} communicators are busy; "
                    "raise the option communicators of backend nccl"
                )
            with self._changed:
                if len(self._taken) >= self._most:
                    self._changed.wait(CHECK_EVERY_S)

    def rest(self, seat: Seat) -> None:
        """See :meth:`Seat.rest`."""
        with self._changed:
            seat.rests_since = time.monotonic()
            self._changed.notify_all()

    def wake(self, seat: Seat) -> bool:
        """See :meth:`Seat.wake`."""
        with self._changed:
            seat.rests_since = 0.0
            return not seat.leaves

    def release(self, seat: Seat) -> None:
        """See :meth:`Seat.release`."""
        with self._changed:
            if seat in self._taken:
                self._taken.remove(seat)
                self._changed.notify_all()

    def _least_used(self) -> Seat | None:
        """Who is to leave. Under the lock; one at a time, for each who waits takes one seat."""
        if any(seat.leaves for seat in self._taken):
            return None
        resting = [seat for seat in self._taken if seat.rests_since]
        if not resting:
            return None
        least = min(resting, key=lambda seat: seat.rests_since)
        least.leaves = True
        return least
