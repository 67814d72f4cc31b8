"""An address that does not answer costs one request its wait, not every request after it."""

from __future__ import annotations

import threading

SILENT_S = 2.0
"""So long after an unanswered pin only others than pins are sent; then one pin tries again."""
WAITED_MIN_S = 0.25
"""A caller that waited less than this has not shown that the address is silent."""


class Silence:
    """What one address has last done about pins. Any thread; ``now_s`` is monotonic time.

    Pins only: a request can do without one, by computing its prefix. What a transfer under way has
    to say is always sent, for it may be all that keeps the transfer's result.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_try_s: float | None = None

    def may_ask(self, now_s: float) -> bool:
        """Whether to send a pin now; while silent, one caller in ``SILENT_S`` may."""
        with self._lock:
            if self._next_try_s is None:
                return True
            if now_s < self._next_try_s:
                return False
            self._next_try_s = now_s + SILENT_S
            return True

    def answered(self) -> None:
        """The address said something."""
        with self._lock:
            self._next_try_s = None

    def unanswered(self, waited_s: float, now_s: float) -> None:
        """A caller gave up after ``waited_s``."""
        if waited_s < WAITED_MIN_S:
            return
        with self._lock:
            self._next_try_s = now_s + SILENT_S
