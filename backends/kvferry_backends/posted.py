"""A read under way whose parts run on threads of a backend: their results, and its fence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from kvferry.errors import BackendError
from kvferry.ports.backend import ReadOutcome

FENCE_S = 10.0
"""Longest that an abort waits for the threads of a read to leave its target blocks."""


class PartedRead:
    """Implements :class:`kvferry.ports.backend.Posted`.

    It ends when each of its parts has ended, so an outcome of any kind means that no thread
    touches the target blocks any more. The first part to fail stops the others.
    """

    def __init__(
        self, transfer: str, parts: int, on_end: Callable[[Any], None], source: str = ""
    ) -> None:
        """``source`` names the life of the peer that it reads from; ``on_end`` gets the read."""
        self.transfer = transfer
        self.source = source
        self._on_end = on_end
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._parts_left = parts
        self._aborted = False
        self._error = ""
        self._detail = ""
        self._bytes = 0
        self._verified = 0
        self._outcome: ReadOutcome | None = None
        self._ended = threading.Event()

    @property
    def over(self) -> bool:
        """Whether parts have to end: the read failed or was aborted."""
        return self._aborted or bool(self._error)

    def start(self, threads: Executor, *parts: Callable[[], object]) -> None:
        """Give each part a thread; one that gets none has failed."""
        for part in parts:
            try:
                threads.submit(part)
            except RuntimeError as error:
                self.part_failed("error", f"no thread could be started: {error}")

    def poll(self) -> ReadOutcome | None:
        """The outcome, or None while the read runs. Never blocks."""
        return self._outcome

    def wait(self, timeout_s: float) -> ReadOutcome | None:
        """Like :meth:`poll`, after waiting for at most ``timeout_s``."""
        self._ended.wait(timeout_s)
        return self._outcome

    def abort(self) -> ReadOutcome:
        """Stop, and return when no byte of a target block can change any more.

        Raises:
            BackendError: the fence did not hold within :data:`FENCE_S`; the target blocks must
                stay in quarantine.
        """
        with self._lock:
            self._aborted = True
            self._stop_parts()
        self._ended.wait(FENCE_S)
        if self._outcome is None:
            raise BackendError(
                f"transfer {self.transfer}: it was told to stop but a thread still runs after "
                f"{FENCE_S} s; keep its target blocks in quarantine until wait() gives an outcome"
            )
        return self._outcome

    def fail(self, error: str, detail: str) -> None:
        """Let the read end with this error, unless it has one. Does not wait for its parts."""
        with self._lock:
            if not self._error:
                self._error, self._detail = error, detail
            self._stop_parts()

    def part_done(self, byte_count: int, verified: int = 0) -> None:
        """A part has all its bytes in place."""
        with self._lock:
            self._bytes += byte_count
            self._verified += verified
        self._part_ended()

    def part_failed(self, error: str, detail: str) -> None:
        """A part failed, and with it the read."""
        self.fail(error, detail)
        self._part_ended()

    def _stop_parts(self) -> None:
        """Make the calls of parts end that would not see :attr:`over` soon. Under the lock."""

    def _part_ended(self) -> None:
        with self._lock:
            self._parts_left -= 1
            if self._parts_left:
                return
            error, detail = self._error, self._detail
            if error and self._aborted:
                error, detail = "aborted", "aborted by this node"
            self._outcome = ReadOutcome(
                bytes=self._bytes,
                verified_blocks=self._verified,
                read_ms=(time.monotonic() - self._began) * 1000,
                error=error,
                detail=detail,
            )
        self._on_end(self)
        self._ended.set()
