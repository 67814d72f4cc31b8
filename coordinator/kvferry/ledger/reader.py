"""Reading a stream in order and without a hole.

A reader asks for messages in bounded batches through a consumer of its own that the server
forgets when nobody asks. It numbers what it gets: a consumer counts its deliveries, so a missing
number is a message that was lost on the way. Whatever goes wrong (a missing number, a consumer
that is gone, silence, a new connection), the reader makes a new consumer behind the last message
that it handed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from kvferry.errors import LedgerError, LedgerRefused, LedgerReplaced, LedgerUnavailable
from kvferry.ledger.consumer import Consumer
from kvferry.ledger.jsapi import STREAM_NOT_FOUND, ApiError, JetStreamApi
from kvferry.ledger.replies import Replies
from kvferry.ports.log import Stored, StreamBounds

_log = logging.getLogger("kvferry.ledger")

STALL_MAX_S = 15.0
"""A read that does not follow fails without any message for so long."""
AGAIN_FIRST_S, AGAIN_MAX_S = 0.05, 2.0


async def bounds(api: JetStreamApi, stream: str) -> StreamBounds:
    """First and last sequence of a stream.

    Raises:
        LedgerRefused: there is no such stream.
    """
    try:
        state = (await api.call(f"STREAM.INFO.{stream}"))["state"]
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            raise LedgerRefused(
                f"the ledger has no stream {stream}: the coordinator (`kvferry up` or "
                "`kvferry coordinator`) creates it, start it"
            ) from error
        raise
    first, last = int(state["first_seq"]), int(state["last_seq"])
    empty = int(state.get("messages", 0)) == 0
    return StreamBounds(last + 1 if empty else first, last)


class Reader:
    """One pass over a stream."""

    def __init__(
        self, replies: Replies, api: JetStreamApi, stream: str, start: int, subject: str
    ) -> None:
        self._replies = replies
        self._api = api
        self._stream = stream
        self._subject = subject
        self._start = start
        self._next = start
        self._last_ms = 0
        """Store time of the last message that was handed out, 0 for none."""
        self.restarts = 0
        """How often a new consumer was needed."""

    async def follow(self) -> AsyncGenerator[Stored, None]:
        """All messages from the start on, for as long as the link lives."""
        again_s = AGAIN_FIRST_S
        while not self._replies.link.closed:
            try:
                async with aclosing(self._consume(end=None)) as messages:
                    async for stored in messages:
                        again_s = AGAIN_FIRST_S
                        yield stored
            except LedgerUnavailable as error:
                again_s = await self._pause(error, again_s)

    async def until_end(self) -> AsyncGenerator[Stored, None]:
        """All messages up to the last of the stream as it is now."""
        end = (await bounds(self._api, self._stream)).last
        clock = asyncio.get_running_loop().time
        again_s, progress_at = AGAIN_FIRST_S, clock()
        while self._next <= end:
            try:
                async with aclosing(self._consume(end=end)) as messages:
                    async for stored in messages:
                        again_s, progress_at = AGAIN_FIRST_S, clock()
                        yield stored
                return
            except LedgerUnavailable as error:
                if self._replies.link.closed or clock() - progress_at > STALL_MAX_S:
                    raise
                again_s = await self._pause(error, again_s)

    async def _pause(self, error: LedgerError, wait_s: float) -> float:
        self.restarts += 1
        _log.info("reading %s again from sequence %d: %s", self._stream, self._next, error)
        await asyncio.sleep(wait_s)
        return min(AGAIN_MAX_S, wait_s * 2)

    async def _consume(self, end: int | None) -> AsyncGenerator[Stored, None]:
        await self._check_not_behind()
        # The last message once more: if it is another one now, so is the stream.
        start = self._next - 1 if self._last_ms else self._next
        async with Consumer(
            self._replies, self._api, self._stream, start, self._subject
        ) as consumer:
            while True:
                if end is not None and consumer.pending == 0 and consumer.drained:
                    return
                stored = await consumer.next()
                if stored is None:
                    if end is not None:
                        await consumer.refresh_pending()
                    continue
                if stored.seq < self._next:
                    self._check_same(stored)
                    continue
                if end is not None and stored.seq > end:
                    return
                self._next, self._last_ms = stored.seq + 1, stored.stored_ms
                yield stored

    async def _check_not_behind(self) -> None:
        """
        Raises:
            LedgerRefused: the stream ends before what we have read of it.
        """
        last = (await bounds(self._api, self._stream)).last
        if self._next > self._start and last < self._next - 1:
            raise LedgerRefused(
                f"stream {self._stream} ends at sequence {last}, but {self._next - 1} was read "
                "before: its store was reset or rolled back. Start readers anew"
            )

    def _check_same(self, again: Stored) -> None:
        """
        Raises:
            LedgerReplaced: the message that was read last is another one now.
        """
        if again.seq == self._next - 1 and self._last_ms not in (0, again.stored_ms):
            raise LedgerReplaced(
                f"stream {self._stream} holds another message at sequence {again.seq} than was "
                "read before: its store was reset or rolled back. Start readers anew"
            )
