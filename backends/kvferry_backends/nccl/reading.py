"""A read: waiting in its pair's queue, under way, or ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kvferry.ports.backend import ReadOutcome
from kvferry_backends.control.calls import Call
from kvferry_backends.posted import PartedRead


class Stopped(Exception):
    """The transfer has to end.

    Attributes:
        error: the word for it in a ``ReadOutcome``.
    """

    def __init__(self, error: str, detail: str) -> None:
        super().__init__(detail)
        self.error = error


class Read(PartedRead):
    """A read of one part.

    While it waits for others of its pair, an abort and its deadline end it at once.
    """

    def __init__(
        self, transfer: str, source: str, deadline: float, on_end: Callable[[Any], None]
    ) -> None:
        """``source`` is the peer's instance, ``deadline`` a point of ``time.monotonic()``."""
        super().__init__(transfer, 1, on_end, source)
        self.deadline = deadline
        self._begun = False
        self._call: Call | None = None

    def poll(self) -> ReadOutcome | None:
        """The outcome, or None while the read runs. Never blocks."""
        if self._outcome is None and time.monotonic() >= self.deadline:
            self._leave_queue("deadline", "its turn did not come before its deadline")
        return super().poll()

    def wait(self, timeout_s: float) -> ReadOutcome | None:
        """Like :meth:`poll`, after waiting for at most ``timeout_s``."""
        until = time.monotonic() + timeout_s
        if until > self.deadline:
            super().wait(max(0.0, self.deadline - time.monotonic()))
            self.poll()
        return super().wait(max(0.0, until - time.monotonic()))

    def abort(self) -> ReadOutcome:
        """Stop, and return when no byte of a target block can change any more.

        Raises:
            BackendError: the fence did not hold in time; the blocks must stay in quarantine.
        """
        self._leave_queue("aborted", "aborted by this node")
        return super().abort()

    def fail(self, error: str, detail: str) -> None:
        """Let the read end with this error, unless it has one. Does not wait for the fence."""
        self._leave_queue(error, detail)
        super().fail(error, detail)

    def begin(self) -> bool:
        """Its turn has come; False if it has ended meanwhile."""
        self.poll()
        with self._lock:
            begins = not self._begun
            self._begun = True
        return begins

    def check(self) -> None:
        """Whether it may go on.

        Raises:
            Stopped: it was aborted, its peer has ended, or its deadline has passed.
        """
        if self._aborted:
            raise Stopped("aborted", "aborted by this node")
        if self._error:
            raise Stopped(self._error, self._detail)
        if time.monotonic() >= self.deadline:
            raise Stopped("deadline", "the deadline passed before all blocks had come")

    def attach(self, call: Call) -> None:
        """From now on it waits for what this call brings.

        Raises:
            Stopped: it has to end.
        """
        self.check()
        with self._lock:
            self._call = call
            if self.over:
                call.cut()

    def detach(self) -> None:
        """Nobody will cut the call for this read any more."""
        with self._lock:
            self._call = None

    def _stop_parts(self) -> None:
        if self._call is not None:
            self._call.cut()

    def _leave_queue(self, error: str, detail: str) -> None:
        """End it if its turn has not come: nothing has touched its blocks, and nothing will."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
        self.part_failed(error, detail)
