"""How long the agent sleeps between two looks into the outbox."""

from __future__ import annotations

from kvferry.node.agent.settings import NodeSettings

BUSY_FACTOR = 2.0
IDLE_FACTOR = 1.5


class Pace:
    """Each look takes the interpreter from the engine for a moment, and so do the messages that
    follow: a tenth of a millisecond and more each time. So a running engine is looked at ever more
    rarely, one that just stopped soon again, and an idle one rarely, for it has nothing to tell.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._first_s = settings.poll_ms / 1000
        self._busy_s = settings.busy_poll_ms / 1000
        self._idle_s = settings.idle_poll_ms / 1000
        self._was_busy = False
        self._pause_s = self._first_s

    def after_look(self, *, ran: bool, left: bool) -> float:
        """Seconds to sleep now.

        Args:
            ran: the engine left something since the last look.
            left: this look could not take everything.
        """
        if left:
            return 0.0
        if ran != self._was_busy:
            self._was_busy, self._pause_s = ran, self._first_s
        elif ran:
            self._pause_s = min(self._pause_s * BUSY_FACTOR, self._busy_s)
        else:
            self._pause_s = min(self._pause_s * IDLE_FACTOR, self._idle_s)
        return self._pause_s
