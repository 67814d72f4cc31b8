"""Decode slots: routers ask, the leader decides, and nothing is answered before it is stored."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from kvferry.core.applied import Applied
from kvferry.core.commands import Command
from kvferry.core.decision import Decision
from kvferry.core.events import SlotChanged
from kvferry.core.messages import encode
from kvferry.core.slots import ABANDONED, DECODING, ENDS, FREE, HELD, IDLE, OPENED, REGISTERED
from kvferry.core.slots import CONFIRMED as CONFIRMED_SLOT
from kvferry.core.slots import REFUSED as NOT_ADMITTED
from kvferry.core.slots_commands import ChangeSlot, LendSlot, NameSlot
from kvferry.core.slots_messages import (
    BUSY,
    DONE,
    GRANTED,
    NOT_LEADER,
    REFUSED,
    SLOT_NEWS_SUBJECT,
    UNAVAILABLE,
    AcquireSlot,
    ConfirmSlot,
    EndSlot,
    Lent,
    RegisterSlots,
    RenewSlots,
    SlotAnswer,
    SlotNews,
    SlotQuestion,
)
from kvferry.core.slots_state import Slots, SlotState, held_by, retry_after_ms
from kvferry.daemon.decisions import Decider
from kvferry.daemon.projector import Projector
from kvferry.daemon.slot_queue import SlotQueue
from kvferry.daemon.slot_timers import SlotTimers
from kvferry.daemon.standing import NotLeader, Standing
from kvferry.errors import LedgerError
from kvferry.ids import ROUTER_SPACE
from kvferry.ports.log import FACTS_STREAM, BusPort, LogPort, Reply

log = logging.getLogger("kvferry.daemon")

NEWS_PACE_S = 0.02
"""Slots that become free within so long share a message."""
SAID_BY_HOLDERS = (*(end for end in ENDS if end != IDLE), ABANDONED)
_FREEING = (*ENDS, OPENED, REGISTERED)
_QUESTIONS = msgspec.msgpack.Decoder(SlotQuestion)


class SlotService:
    """Answers on ``slots_subject(replica)``, one question at a time."""

    def __init__(
        self,
        log_port: LogPort,
        projector: Projector,
        standing: Standing,
        decider: Decider,
        bus: BusPort,
        timers: SlotTimers,
    ) -> None:
        self.malformed = 0
        self.queue = SlotQueue(self.answer)
        self._log = log_port
        self._projector = projector
        self._standing = standing
        self._decider = decider
        self._bus = bus
        self._timers = timers
        self._freed: dict[str, None] = {}
        self._news = asyncio.Event()
        projector.observe(self._on_applied)

    async def handle(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """One question from the bus."""
        if reply is None:
            return
        try:
            question: SlotQuestion = _QUESTIONS.decode(data)
        except msgspec.DecodeError as error:
            self.malformed += 1
            log.warning("a question about slots on %s cannot be read: %s", subject, error)
            return
        if isinstance(question, RenewSlots):
            self._signs_of(question)
        self.queue.put(data, question, reply)

    async def answer(self, question: SlotQuestion) -> SlotAnswer:
        """The answer; whatever it says is stored, or true of the ledger as it is now."""
        try:
            match question:
                case AcquireSlot():
                    return await self._acquire(question)
                case RegisterSlots():
                    return await self._register(question)
                case ConfirmSlot():
                    return await self._change(question.holder, question.lent, CONFIRMED_SLOT, "")
                case EndSlot():
                    return await self._end(question)
                case RenewSlots():
                    return await self._renew(question)
        except NotLeader as error:
            return self._say(NOT_LEADER, why=str(error), leader=error.leader)
        except LedgerError as error:
            return self._say(UNAVAILABLE, why=str(error), reason="ledger")

    async def run(self) -> None:
        """Tell routers which nodes became free, until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(NEWS_PACE_S)
            self._news.clear()
            nodes, self._freed = tuple(self._freed), {}
            term = self._decider.term_in(ROUTER_SPACE)
            if not nodes or not term or not self._bus.connected():
                continue
            news = SlotNews(replica=self._standing.replica, term=term, nodes=nodes)
            try:
                await self._bus.publish(SLOT_NEWS_SUBJECT, encode(news))
            except LedgerError as error:
                log.info("routers did not hear of free slots, they ask again anyway: %s", error)

    # --- inner -------------------------------------------------------------------------------

    async def _acquire(self, question: AcquireSlot) -> SlotAnswer:
        made = await self._decide(
            LendSlot(
                space=ROUTER_SPACE,
                holder=question.holder,
                number=question.number,
                request=question.request,
                candidates=question.candidates,
                session=question.session,
                waited_ms=question.waited_ms,
            )
        )
        if made.reason == BUSY:
            wait_ms = retry_after_ms(self._slots(), question.candidates, _now_ms())
            return self._say(BUSY, why=made.refused, reason=BUSY, retry_after_ms=wait_ms)
        if made.refused:
            return self._say(UNAVAILABLE, why=made.refused, reason=made.reason)
        leases = held_by(self._slots(), question.holder)
        lease = next((one for one in leases if one.request == question.request), None)
        if lease is None:
            # Stored, and over before we looked: then the next leader ended it.
            return self._say(NOT_LEADER, why="the lease has ended; ask again")
        self._timers.sign(Lent(lease.node.name, lease.fence))
        return self._say(GRANTED, node=lease.node, fence=lease.fence)

    async def _register(self, question: RegisterSlots) -> SlotAnswer:
        above = 0
        lost = self._projector.state.dropped.get("lost", 0)
        if self._projector.begun_late or lost:
            above = (await self._log.bounds(FACTS_STREAM)).last
        refused = Decision()
        for node in question.nodes:
            made = await self._decide(
                NameSlot(space=ROUTER_SPACE, node=node, who=question.holder, above=above)
            )
            refused = made if made.refused and not refused.refused else refused
        if refused.refused:
            return self._say(REFUSED, why=refused.refused, reason=refused.reason)
        return self._say(DONE)

    async def _end(self, question: EndSlot) -> SlotAnswer:
        if question.how not in SAID_BY_HOLDERS:
            why = f"a holder ends a lease with {', '.join(SAID_BY_HOLDERS)}, not {question.how!r}"
            return self._say(REFUSED, why=why, reason="phase")
        return await self._change(question.holder, question.lent, question.how, question.why)

    async def _change(self, holder: str, lent: Lent, change: str, why: str) -> SlotAnswer:
        command = ChangeSlot(
            space=ROUTER_SPACE,
            node=lent.node,
            fence=lent.fence,
            change=change,
            holder=holder,
            why=why,
        )
        made = await self._decide(command)
        if made.refused:
            return self._say(REFUSED, why=made.refused, reason=made.reason)
        return self._say(DONE)

    async def _renew(self, question: RenewSlots) -> SlotAnswer:
        self._signs_of(question)
        # Only after this is it known that no other leader has ended one of them.
        await self._decider.command(ROUTER_SPACE, None, certain=True)
        gone = tuple(lent for lent in question.lent if not self._has(question.holder, lent))
        for slot in held_by(self._slots(), question.holder):
            lent = Lent(slot.node.name, slot.fence)
            unknown = lent not in question.lent and slot.request not in question.asking
            if unknown and slot.number < question.number:
                change = ABANDONED if slot.phase == DECODING else NOT_ADMITTED
                why = "its router never heard of the lease"
                await self._change(question.holder, lent, change, why)
        return self._say(DONE, gone=gone)

    def _signs_of(self, question: RenewSlots) -> None:
        """Its holder lives, however long the question waits for its turn."""
        for lent in question.lent:
            if self._has(question.holder, lent):
                self._timers.sign(lent)

    async def _decide(self, command: Command) -> Decision:
        return await self._decider.command(ROUTER_SPACE, command, certain=True)

    def _has(self, holder: str, lent: Lent) -> bool:
        slot = self._slots().nodes.get(lent.node)
        return (
            slot is not None
            and slot.phase in HELD
            and (slot.holder, slot.fence) == (holder, lent.fence)
        )

    def _slots(self) -> Slots:
        space = self._projector.state.spaces.get(ROUTER_SPACE)
        return space.slots if space is not None else Slots()

    def _on_applied(self, applied: list[Applied]) -> None:
        """The projector's observer."""
        for one in applied:
            event = one.entry.event
            if isinstance(event, SlotChanged) and event.change in _FREEING:
                slot = self._slots().nodes.get(event.node)
                if slot is not None and _lendable(slot):
                    self._freed[event.node] = None
                    self._news.set()

    def _say(self, verdict: str, **more: object) -> SlotAnswer:
        return SlotAnswer(replica=self._standing.replica, verdict=verdict, **more)  # type: ignore[arg-type]


def _lendable(slot: SlotState) -> bool:
    return slot.phase == FREE and not slot.drained


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
