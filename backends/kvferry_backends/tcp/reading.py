"""A read under way: its parts, their threads' results, and its fence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvferry.errors import BackendError
from kvferry.ports.backend import ReadOutcome
from kvferry_backends.tcp.stream import Stream, StreamError

FENCE_S = 10.0
"""Longest that an abort waits for the threads of a read to leave its target blocks."""


class Read:
    """Implements :class:`kvferry.ports.backend.Posted`.

    It ends when each of its parts has ended, so an outcome of any kind means that no thread
    touches the target blocks any more. The first part to fail cuts the others.
    """

    def __init__(
        self, transfer: str, parts: int, on_end: Callable[[Read], None], source: str = ""
    ) -> None:
        self.transfer = transfer
        self.source = source
        """The life of the peer that it reads from."""
        self._on_end = on_end
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._parts_left = parts
        self._live: set[Stream] = set()
        self._aborted = False
        self._error = ""
        self._detail = ""
        self._bytes = 0
        self._verified = 0
        self._outcome: ReadOutcome | None = None
        self._ended = threading.Event()

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
            self._cut_live()
        self._ended.wait(FENCE_S)
        if self._outcome is None:
            raise BackendError(
                f"transfer {self.transfer}: its connections are cut but a thread still runs after "
                f"{FENCE_S} s; keep its target blocks in quarantine until wait() gives an outcome"
            )
        return self._outcome

    def attach(self, stream: Stream) -> None:
        """A part begins to use ``stream``.

        Raises:
            StreamError: the read is over.
        """
        with self._lock:
            if self._aborted or self._error:
                raise StreamError("aborted", "the read ended before this connection was used")
            self._live.add(stream)

    def detach(self, stream: Stream) -> None:
        """A part does not use ``stream`` any more; nobody will cut it for this read."""
        with self._lock:
            self._live.discard(stream)

    def part_done(self, byte_count: int, verified: int) -> None:
        """A part has all its bytes in place."""
        with self._lock:
            self._bytes += byte_count
            self._verified += verified
        self._part_ended()

    def part_failed(self, error: str, detail: str) -> None:
        """A part failed, and with it the read."""
        self.fail(error, detail)
        self._part_ended()

    def fail(self, error: str, detail: str) -> None:
        """Let the read end with this error, unless it has one. Does not wait for its parts."""
        with self._lock:
            if not self._error:
                self._error, self._detail = error, detail
            self._cut_live()

    def _cut_live(self) -> None:
        """Under the lock, so that no stream is hit that another read has taken since."""
        for stream in self._live:
            stream.cut()

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
