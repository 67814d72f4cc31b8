"""The live fold: follows the facts stream and keeps the state and its index at its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from kvferry.core.state import State
from kvferry.errors import KVFerryError, LedgerReplaced, LedgerUnavailable
from kvferry.index.folded import Observer
from kvferry.index.spaces import ResidencyIndex
from kvferry.ports.log import FACTS_STREAM, LogPort, ObjectPort, Stored
from kvferry.replay.reading import closing
from kvferry.replay.snapshots import load_newest
from kvferry.replay.step import skip_lost, step

log = logging.getLogger("kvferry.daemon")

SLICE_S = 0.002
"""A backlog is folded in slices, so that plans are answered in between."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
REPLACED_AFTER_S = 1.0
"""A stream that is shorter than the fold for so long was replaced. A cluster's new stream leader
may be behind what the last one delivered for a moment."""


class Projector:
    """One writer of :attr:`state` and :attr:`index`; everything else on the loop only reads them.

    Both attributes are replaced when the ledger turns out to be another one than was folded, so
    read them where they are used and do not keep them.
    """

    def __init__(
        self,
        log_port: LogPort,
        objects: ObjectPort,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = State()
        self.index = ResidencyIndex()
        self.last_stored_ms = 0
        """Store time of the message at the state's position, 0 where that is not known."""
        self.loaded = False
        """Whether the first load is over: until then the state is empty because we are new."""
        self.begun_late = False
        """Whether the ledger begins behind what the fold could begin at: nobody knows any more what
        was decided before."""
        self.level = asyncio.Event()
        """Set once the state was at the stream's end after a load: from then on it is only as old
        as messages take to come, and good enough to answer from."""
        self._log = log_port
        self._objects = objects
        self._clock = clock
        self._observers: list[Observer] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._last = 0
        self._level_at = clock()
        self._doubted = asyncio.Event()
        self._short_since: float | None = None

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with what each message applied, after state and index have it."""
        self._observers.append(observer)

    async def run(self) -> None:
        """Load, then follow, until cancelled. Ledger errors are retried with backoff."""
        retry_s = RETRY_FIRST_S
        while True:
            before = self.state.position
            try:
                if not self.loaded:
                    await self._load()
                await self._follow()
            except LedgerReplaced as error:
                log.warning("%s; folding again from its beginning", error)
                self._forget()
                await asyncio.sleep(RETRY_FIRST_S)
            except KVFerryError as error:
                if self.state.position > before:
                    retry_s = RETRY_FIRST_S
                log.warning(
                    "reading the ledger stopped at %d: %s; trying again in %.1f s",
                    self.state.position,
                    error,
                    retry_s,
                )
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def measure(self) -> None:
        """Look where the stream ends, for :meth:`lag_messages`; notice a replaced ledger.

        Raises:
            LedgerError: the log does not answer.
        """
        # What is folded while the answer is on its way may lie behind the end that it names.
        folded = self.state.position
        bounds = await self._log.bounds(FACTS_STREAM)
        self._last = bounds.last
        self._note_short(self.loaded and bounds.last < folded)
        self._note_level()

    def lag_messages(self) -> int:
        """Messages between the state and the stream's end as last measured."""
        return max(0, self._last - self.state.position)

    def lag_ms(self) -> float:
        """For how long the state has not been at the stream's end."""
        return (self._clock() - self._level_at) * 1000 if self.lag_messages() else 0.0

    async def reached(self, seq: int, timeout_s: float) -> None:
        """Wait until the state includes stream sequence ``seq``.

        Raises:
            LedgerUnavailable: it did not get there in time.
        """
        if self.state.position >= seq:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (seq, waiter)
        self._waiters.append(item)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            raise LedgerUnavailable(
                f"the state is at {self.state.position} and did not reach {seq} within "
                f"{timeout_s:g} s"
            ) from None
        finally:
            if item in self._waiters:
                self._waiters.remove(item)

    async def _load(self) -> None:
        bounds = await self._log.bounds(FACTS_STREAM)
        self._last = bounds.last
        found = await load_newest(self._log, self._objects, bounds)
        if found is not None:
            self.state, self.last_stored_ms = found
        self.begun_late = self.state.position < bounds.first - 1
        if self.begun_late:
            skip_lost(self.state, bounds.first)
            self.last_stored_ms = 0
        self.index = ResidencyIndex.from_state(self.state)
        if bounds.last:
            how = "begun at a checkpoint" if found is not None else "no checkpoint fits"
            log.info("folding %d to %d (%s)", self.state.position + 1, bounds.last, how)
        else:
            log.info("the ledger is empty: waiting for the first node to join")
        self.loaded = True
        self._note_level()
        self._wake()

    async def _follow(self) -> None:
        """Read until the ledger fails or may be another one; then the last message is read anew."""
        reading = asyncio.create_task(self._read(), name="kvferry-projector-read")
        doubted = asyncio.create_task(self._doubted.wait(), name="kvferry-projector-doubted")
        try:
            await asyncio.wait({reading, doubted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, doubted):
                task.cancel()
            ended = await asyncio.gather(reading, doubted, return_exceptions=True)
        if self._doubted.is_set():
            self._doubted.clear()
            if self._short_since is not None:
                raise LedgerReplaced(
                    f"the ledger ends at {self._last} but {self.state.position} was folded: its "
                    "store was replaced or lost its end"
                )
        elif isinstance(ended[0], BaseException):
            raise ended[0]
        else:
            raise LedgerUnavailable("the reader ended")

    async def _read(self) -> None:
        slice_end = time.perf_counter() + SLICE_S
        # The last message once more: if it is another one now, so is the ledger.
        start = max(1, self.state.position)
        async with closing(self._log.read(FACTS_STREAM, start=start, follow=True)) as messages:
            async for stored in messages:
                self._check_same(stored)
                self.apply(stored)
                if time.perf_counter() >= slice_end:
                    await asyncio.sleep(0)
                    slice_end = time.perf_counter() + SLICE_S

    def apply(self, stored: Stored) -> None:
        """Fold one message and tell who follows. Messages that were folded are ignored."""
        if stored.seq <= self.state.position:
            return
        applied = step(self.state, stored)
        self.last_stored_ms = stored.stored_ms
        self._last = max(self._last, stored.seq)
        self._note_level()
        try:
            self.index.follow(self.state, applied)
        except Exception:
            log.exception("the index could not follow message %d; building it again", stored.seq)
            self.index = ResidencyIndex.from_state(self.state)
        for observer in self._observers:
            try:
                observer(applied)
            except Exception:
                log.exception("%r failed at message %d; going on", observer, stored.seq)
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        """End the waits for what the state now includes."""
        for seq, waiter in self._waiters:
            if seq <= self.state.position and not waiter.done():
                waiter.set_result(None)

    def _check_same(self, stored: Stored) -> None:
        """
        Raises:
            LedgerReplaced: this is another message than was folded in its place.
        """
        if stored.seq == self.state.position and self.last_stored_ms not in (0, stored.stored_ms):
            raise LedgerReplaced(
                f"the ledger holds another message at {stored.seq} than was folded: its store was "
                "replaced or lost its end"
            )

    def _forget(self) -> None:
        """What was folded is of a ledger that is gone."""
        self.state = State()
        self.index = ResidencyIndex()
        self.last_stored_ms = 0
        self.loaded = False
        self.level.clear()
        self._short_since = None

    def _note_short(self, short: bool) -> None:
        """The stream ends before what was folded: believed once it stays so, and doubted once it
        has grown again, for that may be another stream."""
        now = self._clock()
        if not short:
            if self._short_since is not None:
                self._short_since = None
                self._doubted.set()
        elif self._short_since is None:
            self._short_since = now
        elif now - self._short_since >= REPLACED_AFTER_S:
            self._doubted.set()

    def _note_level(self) -> None:
        if self.state.position >= self._last:
            self._level_at = self._clock()
            if self.loaded:
                self.level.set()
