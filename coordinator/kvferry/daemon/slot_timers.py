"""Leases of decode slots whose holder fell silent, and nodes that must be seen idle first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from kvferry.core.applied import Applied
from kvferry.core.events import SlotChanged
from kvferry.core.slots import FREE, IDLE
from kvferry.core.slots_commands import ChangeSlot
from kvferry.core.slots_messages import Lent
from kvferry.core.slots_state import Slots, SlotState
from kvferry.daemon.decisions import Decider
from kvferry.daemon.projector import Projector
from kvferry.daemon.slot_status import decode_status
from kvferry.daemon.standing import NotLeader, Standing
from kvferry.errors import LedgerError
from kvferry.ids import ROUTER_SPACE

log = logging.getLogger("kvferry.daemon")

ASK_TIMEOUT_S = 2.0
ASK_EVERY_S = 2.0
"""Between two questions to a node whose lease is due to end."""
STOPPED_SHARE = 1 / 2
"""Of the shortest idle limit: without a look for so long this process was stopped itself, and what
holders said meanwhile still waits to be heard."""

AskStatus = Callable[[str, float], Awaitable[str]]


class SlotTimers:
    """Deadlines of leases on this process's monotonic clock.

    A lease is due once nothing was heard of it for the node's whole idle limit: then whatever its
    request may still have been doing is over. It ends when the node itself says that it is idle, so
    never on our clock alone. All deadlines begin anew when this process starts to lead and whenever
    it could not have heard a sign of life.
    """

    def __init__(
        self,
        projector: Projector,
        standing: Standing,
        decider: Decider,
        *,
        ask: AskStatus = decode_status,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.said: dict[str, str] = {}
        """What each node whose lease is due said last."""
        self._projector = projector
        self._standing = standing
        self._decider = decider
        self._ask = ask
        self._clock = clock
        self._since = clock()
        self._looked = clock()
        self._signs: dict[Lent, float] = {}
        self._asked: dict[Lent, float] = {}
        self._asking: set[asyncio.Task[None]] = set()
        projector.observe(self._on_applied)

    def sign(self, lent: Lent) -> None:
        """The holder of this lease is alive. Call it before anything is waited for: who queues
        for a decision behind us must see it."""
        self._signs[lent] = self._clock()

    def restart(self) -> None:
        """Give every lease its full time again."""
        self._since = self._clock()

    def silent_s(self, slot: SlotState) -> float:
        """For how long nothing was heard of a lease, as far as this process can know."""
        heard = self._signs.setdefault(_lease(slot), self._clock())
        return self._clock() - max(heard, self._since)

    def check(self, connected: bool) -> None:
        """Ask the nodes whose lease is due. Called each tick; waits for nothing."""
        now = self._clock()
        slots = self._slots()
        limits_ms = [slot.node.idle_limit_ms for slot in slots.nodes.values()]
        stopped = (now - self._looked) * 1000 > min(limits_ms, default=0) * STOPPED_SHARE
        self._looked = now
        if stopped or not connected or not self._standing.leading:
            self.restart()
            return
        for slot in slots.nodes.values():
            lent = _lease(slot)
            if not self._due(slot) or now - self._asked.get(lent, -ASK_EVERY_S) < ASK_EVERY_S:
                continue
            self._asked[lent] = now
            task = asyncio.create_task(self._look(lent), name=f"kvferry-slot-{lent.node}")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        self._forget(slots)

    async def close(self) -> None:
        """End what is being asked."""
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    # --- inner -------------------------------------------------------------------------------

    def _slots(self) -> Slots:
        space = self._projector.state.spaces.get(ROUTER_SPACE)
        return space.slots if space is not None else Slots()

    def _due(self, slot: SlotState) -> bool:
        return slot.phase != FREE and self.silent_s(slot) * 1000 > slot.node.idle_limit_ms

    async def _look(self, lent: Lent) -> None:
        slot = self._slots().nodes.get(lent.node)
        if slot is None or _lease(slot) != lent:
            return
        status = await self._ask(slot.node.http, ASK_TIMEOUT_S)
        if self.said.get(lent.node) != status:
            log.warning(
                "nothing was heard of the lease of decode node %s (fence %d) for %.0f s; the node "
                "is %s%s",
                lent.node,
                lent.fence,
                self.silent_s(slot),
                status,
                "" if status == IDLE else ", so the lease stands; end that request or the node",
            )
        self.said[lent.node] = status
        now = self._slots().nodes.get(lent.node)
        # Heard of meanwhile? From here to the queue of decisions nothing is waited for.
        if status != IDLE or now is None or _lease(now) != lent or not self._due(now):
            return
        await self._end(lent, self.silent_s(now))

    async def _end(self, lent: Lent, silent_s: float) -> None:
        command = ChangeSlot(
            space=ROUTER_SPACE,
            node=lent.node,
            fence=lent.fence,
            change=IDLE,
            why=f"nothing was heard for {silent_s:.1f} s",
        )
        try:
            await self._decider.command(ROUTER_SPACE, command)
        except (NotLeader, LedgerError) as error:
            log.info("the lease of decode node %s does not end yet: %s", lent.node, error)

    def _on_applied(self, applied: list[Applied]) -> None:
        """Whatever a holder brought about is a sign of life."""
        for one in applied:
            event = one.entry.event
            if isinstance(event, SlotChanged) and event.fence:
                self._signs[Lent(event.node, event.fence)] = self._clock()

    def _forget(self, slots: Slots) -> None:
        present = {_lease(slot) for slot in slots.nodes.values() if slot.phase != FREE}
        for table in (self._signs, self._asked):
            for lent in table.keys() - present:
                del table[lent]
        for name in self.said.keys() - {lent.node for lent in present}:
            del self.said[name]


def _lease(slot: SlotState) -> Lent:
    return Lent(slot.node.name, slot.fence)
