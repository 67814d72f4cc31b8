"""The server's time as far as its messages tell it."""

from __future__ import annotations


class ServerClock:
    """Windows count in the server's store time, and the watcher's own clock may be wrong.

    A message that comes as it is written is a little older than the server's present, never
    younger. So the youngest of them is the best word for how the two clocks stand.
    """

    def __init__(self, wall_ms: int, mono_ms: float) -> None:
        """Until a message says otherwise the watcher's own wall clock holds."""
        self._ahead_ms = float(wall_ms) - mono_ms
        self._told = False

    def heard(self, stored_ms: int, mono_ms: float, *, live: bool) -> None:
        """A message was read.

        Args:
            stored_ms: when the server stored it.
            mono_ms: the watcher's monotonic clock as it was read.
            live: it was written while we watched; an older one only says what the least is.
        """
        ahead_ms = stored_ms - mono_ms
        if live and not self._told:
            self._told = True
            self._ahead_ms = ahead_ms
        self._ahead_ms = max(self._ahead_ms, ahead_ms)

    def now_ms(self, mono_ms: float) -> int:
        """The server's present, Unix milliseconds."""
        return round(mono_ms + self._ahead_ms)
