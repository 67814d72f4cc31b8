"""The queue in front of TileRT nodes: in order, bounded, and never for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.unit.router.support import until

from kvferry.errors import SlotsBusy, SlotsUnavailable
from kvferry.node.slots import Slot, SlotNode
from kvferry_connectors.router.tilert.waiting import NoSlot, SlotQueue

T0 = SlotNode(name="t0", http="http://a:1", control="a:2")


@dataclass
class OneSlot:
    """Stands in for the coordinator's client: one node, lent to one request at a time."""

    asked: list[str] = field(default_factory=list)
    holder: str = ""
    refuse: SlotsUnavailable | None = None
    change: asyncio.Event = field(default_factory=asyncio.Event)

    async def acquire(
        self, candidates: Sequence[str], request: str, session: str = "", *, waited_s: float = 0.0
    ) -> Slot:
        self.asked.append(request)
        if self.refuse is not None:
            raise self.refuse
        if self.holder:
            raise SlotsBusy(f"t0 is lent to {self.holder}", 7.2)
        self.holder = request
        return Slot(T0, len(self.asked), request, session, time.monotonic())

    async def freed(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self.change.wait()
        except TimeoutError:
            return False
        return True

    def give_back(self) -> None:
        self.holder = ""
        change, self.change = self.change, asyncio.Event()
        change.set()


@dataclass
class Up:
    names: list[str] = field(default_factory=lambda: ["t0"])
    up: bool = True

    def candidates(self) -> list[str]:
        return self.names

    def any_up(self) -> bool:
        return self.up

    def states(self) -> str:
        return "t0: resting"


def queue(slots: OneSlot, waiting_max: int = 8, wait_max_s: float = 60.0) -> SlotQueue:
    return SlotQueue(slots, waiting_max, wait_max_s)


def take(line: SlotQueue, name: str, view: Up | None = None) -> asyncio.Task[Slot]:
    return asyncio.create_task(line.take(view or Up(), name, "", since=time.monotonic()))


async def test_slots_go_out_in_the_order_in_which_requests_came() -> None:
    slots = OneSlot()
    line = queue(slots)
    assert (await take(line, "a")).request == "a"
    waiting = []
    for name in "bcd":
        waiting.append(take(line, name))
        await until(lambda: line.waiting == len(waiting))
    for name, one in zip("bcd", waiting, strict=True):
        slots.give_back()
        assert (await one).request == slots.holder == name
    assert line.waiting == 0
    # Only the head of the queue asks.
    assert [n for i, n in enumerate(slots.asked) if slots.asked[i - 1] != n] == ["a", "b", "c", "d"]


async def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    slots = OneSlot(holder="somebody")
    line = queue(slots, waiting_max=2)
    waiting = []
    for name in "ab":
        waiting.append(take(line, name))
        await until(lambda: line.waiting == len(waiting))
    with pytest.raises(NoSlot) as full:
        await take(line, "c")
    assert full.value.why == "full"
    answer = full.value.answer()
    assert (answer.status, answer.headers["retry-after"]) == (429, "8")
    # One that leaves makes room for another.
    waiting[0].cancel()
    await until(lambda: line.waiting == 1)
    slots.give_back()
    assert (await waiting[1]).request == "b"


async def test_nobody_waits_longer_than_the_bound() -> None:
    slots = OneSlot(holder="somebody")
    line = queue(slots, wait_max_s=0.2)
    head, behind = take(line, "a"), take(line, "b")
    for one in (head, behind):
        with pytest.raises(NoSlot) as full:
            await one
        assert full.value.why == "full"
    assert line.waiting == 0


async def test_one_that_does_not_wait_is_told_at_once() -> None:
    slots = OneSlot(holder="somebody")
    line = queue(slots)
    with pytest.raises(NoSlot) as full:
        await line.take(Up(), "a", "", since=None)
    assert (full.value.why, slots.asked) == ("full", ["a"])
    waiting = take(line, "b")
    await until(lambda: "b" in slots.asked)
    with pytest.raises(NoSlot):
        await line.take(Up(), "c", "", since=None)
    assert "c" not in slots.asked
    slots.give_back()
    assert (await waiting).request == "b"


async def test_a_pool_that_is_down_is_not_waited_for_but_one_in_other_hands_is() -> None:
    slots = OneSlot()
    line = queue(slots)
    with pytest.raises(NoSlot) as down:
        await take(line, "a", Up(names=[], up=False))
    assert down.value.why == "down"
    assert down.value.answer().status == 503
    assert "t0: resting" in str(down.value)
    view = Up(names=[])
    waiting = take(line, "b", view)
    await until(lambda: line.waiting == 1)
    view.names = ["t0"]
    assert (await waiting).request == "b"


async def test_without_a_coordinator_nothing_is_lent_and_a_node_in_doubt_is_waited_for() -> None:
    slots = OneSlot(refuse=SlotsUnavailable("no_coordinator", "nobody answers"))
    line = queue(slots)
    with pytest.raises(NoSlot) as gone:
        await take(line, "a")
    assert (gone.value.why, gone.value.answer().status) == ("no_coordinator", 503)
    slots.refuse = SlotsUnavailable("unsure", "t0 was not seen idle yet")
    waiting = take(line, "b")
    await until(lambda: "b" in slots.asked)
    slots.refuse = None
    slots.give_back()
    assert (await waiting).request == "b"
