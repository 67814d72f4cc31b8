"""A kernel under way as a read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from kvferry.errors import BackendError
from kvferry.ports.backend import ReadOutcome

POLL_MIN_S, POLL_MAX_S = 0.00002, 0.0002
POLL_SHARE = 0.05
"""Of the time that a kernel has run, so that its end is seen late by no more than that."""
FENCE_S = 10.0
"""Longest that an abort waits for the kernel's end, which is milliseconds away."""


class Done(Protocol):
    """What of a CUDA event a read needs."""

    def query(self) -> bool:
        """Whether everything before it on its stream has ended; RuntimeError if it failed."""
        ...


class KernelRead:
    """Implements :class:`kvferry.ports.backend.Posted` over a CUDA event.

    A kernel cannot be stopped half-way: its fence is its end.
    """

    def __init__(
        self,
        done: Done,
        total: int,
        began_s: float,
        *,
        on_end: Callable[[KernelRead], str],
        keep: object,
    ) -> None:
        """``on_end`` is called once and says why the source was lost meanwhile, or nothing.

        ``total`` is in bytes. ``keep`` is what the kernel reads besides blocks: the block lists.
        """
        self._done = done
        self._bytes = total
        self._began_s = began_s
        self._on_end = on_end
        self._keep = keep
        self._lock = threading.Lock()
        self._aborted = False
        self._outcome: ReadOutcome | None = None

    def poll(self) -> ReadOutcome | None:
        """The outcome, or None while the kernel runs."""
        with self._lock:
            if self._outcome is None:
                try:
                    if self._done.query():
                        self._end("", "")
                except RuntimeError as error:
                    # The context is lost: nothing can write any more, and nothing can be trusted.
                    self._end("error", str(error))
            return self._outcome

    def wait(self, timeout_s: float) -> ReadOutcome | None:
        """Poll for at most ``timeout_s``; sleeping in between leaves the GIL to the engine."""
        deadline_s = time.monotonic() + timeout_s
        while (outcome := self.poll()) is None and (now_s := time.monotonic()) < deadline_s:
            time.sleep(min(max(POLL_SHARE * (now_s - self._began_s), POLL_MIN_S), POLL_MAX_S))
        return outcome

    def abort(self) -> ReadOutcome:
        """Wait for the kernel's end; its blocks are not to be used.

        Raises:
            BackendError: it did not end within :data:`FENCE_S`; the target blocks must stay in
                quarantine.
        """
        with self._lock:
            self._aborted = True
        outcome = self.wait(FENCE_S)
        if outcome is None:
            raise BackendError(
                f"the gather kernel still runs after {FENCE_S} s; keep its target blocks in "
                "quarantine until wait() gives an outcome, and restart this engine if none comes"
            )
        return outcome

    def _end(self, error: str, detail: str) -> None:
        lost = self._on_end(self)
        if not error and lost:
            error, detail = "unreachable", lost
        if not error and self._aborted:
            error, detail = "aborted", "aborted by this node"
        self._outcome = ReadOutcome(
            bytes=0 if error else self._bytes,
            read_ms=(time.monotonic() - self._began_s) * 1000,
            error=error,
            detail=detail,
        )
        self._keep = None
