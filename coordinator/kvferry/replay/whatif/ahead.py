"""Reads a stretch of the facts ahead of the fold."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from kvferry.core.envelope import Batch
from kvferry.errors import CodecError
from kvferry.ports.log import FACTS_STREAM, LogPort, Stored
from kvferry.replay.fold import Progress
from kvferry.replay.reading import between, closing
from kvferry.replay.step import read_batch
from kvferry.replay.whatif.lives import Lives

AHEAD_MESSAGES = 4_096
"""How far ahead: a request whose end lies further off is decided about without its chain."""
YIELD_MESSAGES = 64


class Ahead:
    """Messages ``first`` to ``last``, each once the reader is far ahead of it.

    Attributes:
        lives: requests between the two.
        folded: the last message that was given out.
    """

    def __init__(
        self, log: LogPort, first: int, last: int, progress: Progress | None = None
    ) -> None:
        self.lives = Lives()
        self.folded = first - 1
        self._log, self._first, self._last = log, first, last
        self._progress = progress

    async def messages(self) -> AsyncGenerator[tuple[Stored, Batch | None], None]:
        """Each with its batch; None for one that cannot be decoded, which the fold quarantines."""
        waiting: deque[tuple[Stored, Batch | None]] = deque()
        async with closing(between(self._log, FACTS_STREAM, self._first, self._last)) as read:
            async for stored in read:
                waiting.append((stored, self._meet(stored)))
                if len(waiting) > AHEAD_MESSAGES:
                    yield self._next(waiting)
                if stored.seq % YIELD_MESSAGES == 0:
                    self._tell()
                    await asyncio.sleep(0)
        while waiting:
            yield self._next(waiting)
            if self.folded % YIELD_MESSAGES == 0:
                self._tell()
                await asyncio.sleep(0)
        self._tell()

    def _meet(self, stored: Stored) -> Batch | None:
        try:
            batch = read_batch(stored)
        except CodecError:
            return None
        self.lives.see(batch, self.folded)
        return batch

    def _next(self, waiting: deque[tuple[Stored, Batch | None]]) -> tuple[Stored, Batch | None]:
        stored, batch = waiting.popleft()
        self.folded = stored.seq
        return stored, batch

    def _tell(self) -> None:
        if self._progress is not None:
            total = max(1, self._last - self._first + 1)
            self._progress(self.folded - self._first + 1, total)
