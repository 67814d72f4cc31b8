"""What changes a state as the ledger grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import msgspec

from kvferry.core.state import State
from kvferry.ports.log import FACTS_STREAM, LogPort
from kvferry.replay.diff.change import Change
from kvferry.replay.reading import closing
from kvferry.replay.step import step
from kvferry.replay.steps.part import ALL, changes
from kvferry.replay.steps.walk import copied

TOGETHER_S = 0.2
"""What comes within so long is told together."""
SHARE_MAX = 0.2
"""Of the time, the part that comparing two states may take; a large state is told less often."""
PAUSE_MESSAGES = 64


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the state, by one message or a few that came together."""

    state: State
    """As it is now; it goes on changing."""
    stored_ms: int
    """Of the last message."""
    changes: tuple[Change, ...]


async def turns(
    log: LogPort, state: State, nodes: frozenset[str] = ALL, *, together_s: float = TOGETHER_S
) -> AsyncGenerator[Turn, None]:
    """Fold on from ``state``, and tell whenever something has changed. Ends with the log.

    Survives reconnects. Close it with ``contextlib.aclosing``.

    Raises:
        LedgerReplaced: the log is not the one that was read before.
    """
    growth = _Growth(log, state)
    growing = asyncio.create_task(growth.run(), name="follow")
    before = copied(state)
    try:
        while not (growing.done() and not growth.grew.is_set()):
            grown = asyncio.create_task(growth.grew.wait())
            await asyncio.wait((growing, grown), return_when=asyncio.FIRST_COMPLETED)
            grown.cancel()
            await asyncio.sleep(together_s)
            growth.grew.clear()
            began = time.monotonic()
            found = changes(before, state, nodes)
            if found:
                before = copied(state)
            took_s = time.monotonic() - began
            if found:
                yield Turn(state=state, stored_ms=growth.stored_ms, changes=found)
            await asyncio.sleep(took_s / SHARE_MAX)
        await growing
    finally:
        growing.cancel()
        await asyncio.gather(growing, return_exceptions=True)


class _Growth:
    """Folds what comes."""

    def __init__(self, log: LogPort, state: State) -> None:
        self._log = log
        self._state = state
        self.grew = asyncio.Event()
        self.stored_ms = 0

    async def run(self) -> None:
        # The last message once more, so that the reader notices when it is another one.
        start = max(1, self._state.position)
        async with closing(self._log.read(FACTS_STREAM, start=start, follow=True)) as messages:
            async for stored in messages:
                if stored.seq <= self._state.position:
                    continue
                step(self._state, stored)
                self.stored_ms = stored.stored_ms
                self.grew.set()
                if stored.seq % PAUSE_MESSAGES == 0:
                    await asyncio.sleep(0)
