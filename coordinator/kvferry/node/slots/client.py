"""A router's side of decode slots: asks, renews by itself, and sees every lease to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from kvferry.core.messages import ANNOUNCE_SUBJECT
from kvferry.core.slots import ABANDONED, CANCELLED, REFUSED, REPLIED, SlotNode
from kvferry.core.slots_messages import (
    BUSY,
    DONE,
    GRANTED,
    SLOT_NEWS_SUBJECT,
    AcquireSlot,
    ConfirmSlot,
    EndSlot,
    RegisterSlots,
    SlotAnswer,
    SlotNews,
    SlotQuestion,
)
from kvferry.errors import SlotError, SlotLost, SlotsBusy, SlotsUnavailable
from kvferry.node.agent.connect import Connect, connect_jetstream
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.agent.tasks import end_tasks
from kvferry.node.slots.asking import Asking
from kvferry.node.slots.connection import Connection
from kvferry.node.slots.leases import Leases
from kvferry.node.slots.slot import Slot
from kvferry.node.slots.timing import SlotTiming
from kvferry.ports.log import Reply

log = logging.getLogger("kvferry.node")

NOT_REGISTERED = "not_registered"
HOWS = (REPLIED, CANCELLED, REFUSED)


class SlotClient:
    """:class:`kvferry.node.slots.Slots` over the ledger's bus; belongs to one event loop.

    Args:
        settings: where the ledger is, and our name as a router.
        incarnation: of this process; leases of an earlier one are not ours.
        timing: bounds of all waits.
        connect: one attempt to connect; JetStream at ``settings.nats_url`` by default.
    """

    def __init__(
        self,
        settings: NodeSettings,
        incarnation: str,
        *,
        timing: SlotTiming | None = None,
        connect: Connect = connect_jetstream,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holder = f"{settings.node}.{incarnation}"
        self.timing = timing or SlotTiming()
        self._clock = clock
        self._asking = Asking(self.timing, settings.replica_silent_s, clock)
        self._leases = Leases(self.holder, self.timing.end_keep_s, clock)
        self._nodes: dict[str, SlotNode] = {}
        self._unnamed = False
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        handlers = {ANNOUNCE_SUBJECT: self._asking.announced, SLOT_NEWS_SUBJECT: self._news}
        self._connection = Connection(settings, connect, handlers, self._asking.use)

    async def start(self) -> None:
        """Connect and keep leases in the background. Returns at once, whatever the ledger does."""
        if self._tasks:
            raise RuntimeError("a slot client starts once; make a new one")
        self._tasks = [
            asyncio.create_task(self._connection.run(), name="kvferry-slots-connection"),
            asyncio.create_task(self._keep(), name="kvferry-slots-keep"),
        ]

    def available(self) -> bool:
        """See :meth:`kvferry.node.slots.port.Slots.available`."""
        return self._asking.available()

    async def register(self, nodes: Sequence[SlotNode]) -> None:
        """See :meth:`kvferry.node.slots.port.Slots.register`."""
        self._nodes |= {node.name: node for node in nodes}
        await self._name(tuple(nodes))

    async def acquire(
        self,
        candidates: Sequence[str],
        request: str,
        session: str = "",
        *,
        waited_s: float = 0.0,
    ) -> Slot:
        """See :meth:`kvferry.node.slots.port.Slots.acquire`."""
        self._leases.begin(request)
        answered = False
        try:
            question = AcquireSlot(
                holder=self.holder,
                number=self._leases.number(),
                request=request,
                candidates=tuple(candidates),
                session=session,
                waited_ms=waited_s * 1000,
            )
            asked_s = self._clock()
            answer = await self._ask(question)
            if answer.reason == NOT_REGISTERED and not self._nodes.keys().isdisjoint(candidates):
                # The ledger is another one than we named them to.
                await self._name(tuple(self._nodes.values()))
                asked_s = self._clock()
                answer = await self._ask(question)
            answered = True
            if answer.verdict == GRANTED and answer.node is not None:
                slot = self._leases.granted(answer.node, answer.fence, request, session, asked_s)
                self._wake.set()
                return slot
        finally:
            self._leases.asked(request, answered=answered)
            if not answered:
                self._wake.set()
        if answer.verdict == BUSY:
            raise SlotsBusy(answer.why, answer.retry_after_ms / 1000)
        raise SlotsUnavailable(answer.reason or answer.verdict, answer.why)

    async def confirm(self, slot: Slot) -> None:
        """See :meth:`kvferry.node.slots.port.Slots.confirm`."""
        asked_s = self._clock()
        answer = await self._ask(ConfirmSlot(holder=self.holder, lent=slot.lent))
        if answer.verdict != DONE:
            self._leases.lost(slot)
            raise SlotLost(answer.why)
        slot.acknowledged(asked_s)

    async def end(self, slot: Slot, how: str, why: str = "") -> bool:
        """See :meth:`kvferry.node.slots.port.Slots.end`.

        Raises:
            ValueError: a lease does not end that way.
        """
        if how not in HOWS:
            raise ValueError(f"a lease ends with one of {', '.join(HOWS)}, not with {how!r}")
        return await self._finish(slot, how, why)

    async def abandon(self, slot: Slot, why: str) -> bool:
        """See :meth:`kvferry.node.slots.port.Slots.abandon`."""
        return await self._finish(slot, ABANDONED, why)

    async def freed(self, timeout_s: float) -> bool:
        """See :meth:`kvferry.node.slots.port.Slots.freed`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._freed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """See :meth:`kvferry.node.slots.port.Slots.close`."""
        for slot in list(self._leases.held.values()):
            self._leases.end(slot, ABANDONED, "its router stops")
        with contextlib.suppress(TimeoutError, SlotsUnavailable):
            async with asyncio.timeout(self.timing.end_within_s):
                await self._say_ends()
        for end in self._leases.ending.values():
            log.warning("nobody heard how the lease of %s ended: %s", end.lent.node, end.how)
        tasks, self._tasks = self._tasks, []
        await end_tasks(tasks)
        await self._connection.close()

    # --- inner -------------------------------------------------------------------------------

    async def _ask(self, question: SlotQuestion) -> SlotAnswer:
        return await self._asking.ask(question, self.timing.ask_within_s)

    async def _name(self, nodes: tuple[SlotNode, ...]) -> None:
        self._unnamed = True
        answer = await self._ask(RegisterSlots(holder=self.holder, nodes=nodes))
        self._unnamed = False
        if answer.verdict != DONE:
            raise SlotError(answer.why)

    async def _finish(self, slot: Slot, how: str, why: str) -> bool:
        end = self._leases.end(slot, how, why)
        if end is None:
            return True
        try:
            await self._say_end(end, self.timing.end_within_s)
        except SlotsUnavailable as error:
            log.warning("the end of the lease of %s is said again later: %s", slot.node.name, error)
            return False
        return True

    async def _say_end(self, end: EndSlot, within_s: float) -> None:
        answer = await self._asking.ask(end, within_s)
        if answer.verdict != DONE and answer.reason == "phase":
            # It began to decode for all that the ledger knows: then only idleness proves the end.
            log.warning("%s", answer.why)
            end = msgspec.structs.replace(end, how=ABANDONED, why=f"{end.how}; {end.why}")
            await self._asking.ask(end, within_s)
        self._leases.ended(end.lent)

    async def _say_ends(self) -> None:
        for late in self._leases.given_up():
            log.error(
                "nobody heard for %.0f s how the lease of %s ended (%s); it ends when the node was "
                "idle long enough",
                self.timing.end_keep_s,
                late.lent.node,
                late.how,
            )
        for end in list(self._leases.ending.values()):
            await self._say_end(end, self.timing.end_within_s)

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._say_what_is_left()
            except SlotError as error:
                log.warning("decode slots: %s", error)
            except Exception:
                log.exception("keeping leases of decode slots failed; going on")
                await asyncio.sleep(self.timing.idle_s)

    async def _say_what_is_left(self) -> None:
        leases = self._leases
        if leases.held or leases.doubtful:
            await self._renew()
        if self._unnamed:
            await self._name(tuple(self._nodes.values()))
        await self._say_ends()

    async def _renew(self) -> None:
        leases = self._leases
        doubtful, leases.doubtful = leases.doubtful, False
        asked_s, statement = self._clock(), leases.statement()
        try:
            answer = await self._ask(statement)
        except SlotsUnavailable:
            leases.doubtful = leases.doubtful or doubtful
            raise
        for lent in statement.lent:
            slot = leases.held.get(lent)
            if slot is None:
                continue
            if lent in answer.gone:
                leases.lost(slot)
                log.warning("lease of %s (fence %d): not ours any more", lent.node, lent.fence)
            else:
                slot.acknowledged(asked_s)

    def _pause_s(self) -> float:
        sure_s = self._leases.sure_s()
        return min(self.timing.idle_s, sure_s * self.timing.renew_share or self.timing.idle_s)

    async def _news(self, subject: str, data: bytes, reply: Reply | None) -> None:
        try:
            msgspec.msgpack.decode(data, type=SlotNews)
        except msgspec.MsgspecError as error:
            log.debug("news of slots on %s cannot be decoded: %s", subject, error)
            return
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()
