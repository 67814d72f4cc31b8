"""One subscriber's messages, handed over one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from kvferry.ports.log import Handler, Reply

_log = logging.getLogger("kvferry.ledger")

WAITING_MAX = 8192
"""Messages that wait for a handler; beyond it new ones are dropped, as a bus may."""
CLOSE_WAIT_S = 5.0


class Mailbox:
    """Calls ``handler`` for each message, in order, on the loop that created it."""

    def __init__(self, subject: str, handler: Handler) -> None:
        self._subject = subject
        self._handler = handler
        self._waiting: deque[tuple[str, bytes, Reply | None]] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self.dropped = 0
        self._task = asyncio.create_task(self._deliver(), name=f"kvferry bus {subject}")

    def put(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """Queue one message; never blocks."""
        if self._closed:
            return
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            if self.dropped == 1:
                _log.warning(
                    "the handler of %s is too slow: %d messages wait, new ones are dropped",
                    self._subject,
                    WAITING_MAX,
                )
            return
        self._waiting.append((subject, data, reply))
        self._arrived.set()

    async def _deliver(self) -> None:
        while not self._closed:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting and not self._closed:
                subject, data, reply = self._waiting.popleft()
                try:
                    await self._handler(subject, data, reply)
                except Exception:
                    _log.exception("the handler of %s failed; going on with the next", subject)

    async def close(self) -> None:
        """Stop; waits for a running handler for at most :data:`CLOSE_WAIT_S`, then cancels it."""
        self._closed = True
        self._arrived.set()
        if asyncio.current_task() is self._task:
            return
        _, running = await asyncio.wait({self._task}, timeout=CLOSE_WAIT_S)
        if running:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_WAIT_S)
