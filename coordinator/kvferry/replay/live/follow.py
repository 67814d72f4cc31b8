"""A fold that keeps up with the ledger, with what happened lately."""

from __future__ import annotations

import asyncio
import time

from kvferry.core.state import State
from kvferry.errors import LedgerRefused, LedgerUnavailable
from kvferry.ports.log import FACTS_STREAM, LogPort, Stored
from kvferry.replay.fold import Progress, objects_of
from kvferry.replay.live.clock import ServerClock
from kvferry.replay.live.recent import KEPT_S, Recent
from kvferry.replay.reading import closing
from kvferry.replay.snapshots import Found, load_newest
from kvferry.replay.step import skip_lost, step

PAUSE_MESSAGES = 64
"""After so many messages others get their turn: keys, heartbeats, the screen."""
AGAIN_S = 2.0
"""Between attempts on a ledger that was replaced or lost its stream."""


class Live:
    """Begin with :meth:`begin`, keep up with :meth:`follow`; look at the attributes in between.

    It needs no coordinator. What it holds is bounded by what the state bounds, and by
    :class:`Recent`.
    """

    def __init__(self, log: LogPort) -> None:
        self._log = log
        self._fresh()
        self.trouble = ""
        """Why the ledger is not read at the moment; empty while it is."""

    def _fresh(self) -> None:
        self.state = State()
        self.recent = Recent()
        self.clock = ServerClock(time.time_ns() // 1_000_000, _mono_ms())
        self.since_ms = 0
        """From when on everything was seen; 0 for the ledger's beginning."""
        self.folded_ms = 0
        """Store time of the last folded message."""

    def now_ms(self) -> int:
        """The server's present."""
        return self.clock.now_ms(_mono_ms())

    async def begin(self, progress: Progress | None = None) -> None:
        """Fold to the ledger's present end, from a snapshot before the longest window.

        Raises:
            LedgerRefused: there is no such stream.
            LedgerUnavailable: the log does not answer.
        """
        self._fresh()
        bounds = await self._log.bounds(FACTS_STREAM)
        found = await self._start(self.now_ms() - KEPT_S * 1_000)
        if found is not None:
            self.state, self.since_ms = found.state, found.stored_ms
            self.folded_ms = found.stored_ms
        unseen = found is None and bounds.first > 1
        if self.state.position < bounds.first - 1:
            skip_lost(self.state, bounds.first)
        async with closing(self._log.read(FACTS_STREAM, start=self.state.position + 1)) as messages:
            async for stored in messages:
                if unseen:
                    self.since_ms, unseen = stored.stored_ms, False
                await self._take(stored, live=False)
                if progress is not None and stored.seq % PAUSE_MESSAGES == 0:
                    progress(stored.seq, bounds.last)
        self.trouble = ""

    async def follow(self) -> None:
        """Until the log is closed. A ledger that was replaced is begun anew."""
        while True:
            try:
                await self._follow_one()
                return
            except LedgerRefused as error:
                self.trouble = str(error)
            await self._begin_again()

    async def _follow_one(self) -> None:
        # The last message once more, so that the reader notices when it is another one.
        start = max(1, self.state.position)
        async with closing(self._log.read(FACTS_STREAM, start=start, follow=True)) as messages:
            async for stored in messages:
                if stored.seq > self.state.position:
                    await self._take(stored, live=True)

    async def _begin_again(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                await self.begin()
                return
            except (LedgerRefused, LedgerUnavailable) as error:
                self.trouble = str(error)

    async def _start(self, before_ms: int) -> Found | None:
        """The newest snapshot that lets the windows be whole; else any."""
        store = objects_of(self._log)
        if store is None:
            return None
        bounds = await self._log.bounds(FACTS_STREAM)
        found = await load_newest(
            self._log, store, bounds, lambda entry: entry.stored_ms <= before_ms
        )
        # Without one the whole stream tells it, unless its beginning is gone.
        if found is None and bounds.first > 1:
            found = await load_newest(self._log, store, bounds)
        return found

    async def _take(self, stored: Stored, *, live: bool) -> None:
        self.recent.take(step(self.state, stored))
        self.folded_ms = stored.stored_ms
        self.clock.heard(stored.stored_ms, _mono_ms(), live=live)
        if stored.seq % PAUSE_MESSAGES == 0:
            await asyncio.sleep(0)


def _mono_ms() -> float:
    return time.monotonic() * 1_000
