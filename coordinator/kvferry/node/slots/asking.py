"""Finding the leading coordinator and asking it, in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec

from kvferry.core.messages import Announce, encode
from kvferry.core.slots_messages import (
    NOT_LEADER,
    UNAVAILABLE,
    SlotAnswer,
    SlotQuestion,
    slots_subject,
)
from kvferry.errors import LedgerError, SlotsUnavailable
from kvferry.node.slots.timing import SlotTiming
from kvferry.ports.log import BusPort, Reply

log = logging.getLogger("kvferry.node")

NO_COORDINATOR = "no_coordinator"
REPLICAS_MAX = 64
_ANSWERS = msgspec.msgpack.Decoder(SlotAnswer)
_ANNOUNCES = msgspec.msgpack.Decoder(Announce)


class Asking:
    """Questions about slots, each sent until the leader has answered it. One event loop.

    A question may be sent several times and to several replicas: all of them are safe to repeat.
    """

    def __init__(
        self,
        timing: SlotTiming,
        silent_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``silent_s``: a replica that was not heard for so long is not asked."""
        self._timing = timing
        self._silent_s = silent_s
        self._clock = clock
        self._bus: BusPort | None = None
        self._heard: dict[str, tuple[Announce, float]] = {}
        self._news = asyncio.Event()

    def use(self, bus: BusPort | None) -> None:
        """Ask over this bus; None while there is none."""
        self._bus = bus
        self._news.set()

    async def announced(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """The bus handler for announcements of replicas."""
        try:
            announce = _ANNOUNCES.decode(data)
        except msgspec.MsgspecError as error:
            log.debug("an announcement on %s cannot be decoded: %s", subject, error)
            return
        self._heard.pop(announce.replica, None)
        self._heard[announce.replica] = (announce, self._clock())
        if len(self._heard) > REPLICAS_MAX:
            del self._heard[next(iter(self._heard))]
        self._news.set()

    def leader(self) -> str:
        """The replica that leads as far as it was heard; empty while none does."""
        since = self._clock() - self._silent_s
        leading = [one for one, at in self._heard.values() if one.leader and at >= since]
        best = max(leading, key=lambda one: (one.term, one.replica), default=None)
        return best.replica if best is not None else ""

    def available(self) -> bool:
        """Whether asking makes sense now."""
        return self._bus is not None and self._bus.connected() and self.leader() != ""

    async def ask(self, question: SlotQuestion, within_s: float) -> SlotAnswer:
        """The leader's answer.

        Raises:
            SlotsUnavailable: with reason ``no_coordinator``, none within ``within_s``.
        """
        data = encode(question)
        deadline = self._clock() + within_s
        why = "no coordinator is heard that leads"
        told = ""
        while (left_s := deadline - self._clock()) > 0:
            self._news.clear()
            replica, told = told or self.leader(), ""
            if self._bus is None or not self._bus.connected() or not replica:
                await self._until_news(left_s)
                continue
            try:
                wait_s = min(left_s, self._timing.try_s)
                answer = _ANSWERS.decode(
                    await self._bus.request(slots_subject(replica), data, wait_s)
                )
            except (LedgerError, msgspec.MsgspecError) as error:
                why = f"coordinator {replica}: {error}"
                await self._until_news(min(self._timing.pause_s, deadline - self._clock()))
                continue
            if answer.verdict == NOT_LEADER:
                why, told = answer.why, answer.leader if answer.leader != replica else ""
            elif answer.verdict == UNAVAILABLE and answer.reason == "ledger":
                why = answer.why
            else:
                return answer
            if not told:
                await self._until_news(min(self._timing.pause_s, deadline - self._clock()))
        raise SlotsUnavailable(NO_COORDINATOR, f"no answer within {within_s:g} s; {why}")

    async def _until_news(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._news.wait()
