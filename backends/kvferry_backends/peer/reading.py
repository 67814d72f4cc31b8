"""A kernel under way as a read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from kvferry.ports.backend import ReadOutcome

POLL_S = 0.0002


class KernelRead:
    """Implements :class:`kvferry.ports.backend.Posted` over a CUDA event.

    A kernel cannot be stopped half-way: its fence is its end, which is milliseconds away.
    """

    def __init__(
        self, done: Any, total: int, began: float, *, on_end: Callable[[], None], keep: object
    ) -> None:
        self._done = done
        self._bytes = total
        self._began = began
        self._on_end = on_end
        self._keep = keep
        """The block lists on the device: freed only after the kernel has read them."""
        self._lock = threading.Lock()
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
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while (outcome := self.poll()) is None and time.monotonic() < deadline:
            pause.wait(POLL_S)
        return outcome

    def abort(self) -> ReadOutcome:
        """Wait for the kernel's end; its blocks are not to be used."""
        while (outcome := self.wait(1.0)) is None:
            continue
        if outcome.error:
            return outcome
        return ReadOutcome(error="aborted", detail="aborted by this node", bytes=outcome.bytes)

    def _end(self, error: str, detail: str) -> None:
        self._outcome = ReadOutcome(
            bytes=0 if error else self._bytes,
            read_ms=(time.monotonic() - self._began) * 1000,
            error=error,
            detail=detail,
        )
        self._keep = None
        self._on_end()
