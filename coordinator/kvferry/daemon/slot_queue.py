"""Questions about slots that wait for their turn: one decision at a time, and none for nobody."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from kvferry.core.messages import encode
from kvferry.core.slots_messages import AcquireSlot, RegisterSlots, SlotAnswer, SlotQuestion
from kvferry.errors import LedgerError
from kvferry.ports.log import Reply

log = logging.getLogger("kvferry.daemon")

WAITING_MAX = 1_024
"""Different questions; beyond it new ones are dropped, and their askers ask again."""
STALE_S = 2.0
"""Nobody waits any more for the answer to a question that was not repeated for so long. Longer than
askers wait before they repeat one."""
REPLIES_MAX = 8
"""Of one question; the latest are answered."""

Answers = Callable[[SlotQuestion], Awaitable[SlotAnswer]]


class _Waiting(msgspec.Struct):
    question: SlotQuestion
    replies: list[Reply]
    heard_s: float


class SlotQueue:
    """While decisions are slow, askers repeat what they ask. So equal messages are one question,
    and what is repeated no more is not decided: else a queue that has once grown never shrinks.

    What keeps or ends leases goes before what takes new ones.
    """

    def __init__(self, answer: Answers, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.answered = 0
        self.dropped = 0
        self._answer = answer
        self._clock = clock
        self._first: OrderedDict[bytes, _Waiting] = OrderedDict()
        self._then: OrderedDict[bytes, _Waiting] = OrderedDict()
        self._present: tuple[bytes, _Waiting] | None = None
        self._arrived = asyncio.Event()

    def put(self, data: bytes, question: SlotQuestion, reply: Reply) -> None:
        """Queue a message; never waits."""
        queue = self._then if isinstance(question, AcquireSlot | RegisterSlots) else self._first
        known = queue.get(data)
        if known is None and self._present is not None and self._present[0] == data:
            known = self._present[1]
        if known is not None:
            known.heard_s = self._clock()
            known.replies = [*known.replies, reply][-REPLIES_MAX:]
            return
        if len(self._first) + len(self._then) >= WAITING_MAX:
            self.dropped += 1
            return
        queue[data] = _Waiting(question, [reply], self._clock())
        self._arrived.set()

    async def run(self) -> None:
        """Answer one after the other, until cancelled."""
        while True:
            while not (self._first or self._then):
                self._arrived.clear()
                await self._arrived.wait()
            data, waiting = (self._first or self._then).popitem(last=False)
            if self._clock() - waiting.heard_s > STALE_S:
                self.dropped += 1
                continue
            self._present = (data, waiting)
            try:
                answer = await self._answer(waiting.question)
            finally:
                self._present = None
            self.answered += 1
            for reply in waiting.replies:
                try:
                    await reply(encode(answer))
                except LedgerError as error:
                    log.info("an answer about slots could not be sent: %s", error)
