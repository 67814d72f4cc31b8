"""Questions that wait: one of a kind, the pressing ones first, and none that nobody waits for."""

from __future__ import annotations

import asyncio

import msgspec

from kvferry.core.messages import encode
from kvferry.core.slots_messages import AcquireSlot, RenewSlots, SlotAnswer, SlotQuestion
from kvferry.daemon.slot_queue import REPLIES_MAX, STALE_S, WAITING_MAX, SlotQueue
from kvferry.node.slots import SlotTiming


class Desk:
    """A queue whose decisions take as long as a test likes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.decided: list[str] = []
        self.told: list[str] = []
        self.go = asyncio.Event()
        self.queue = SlotQueue(self.answer, clock=lambda: self.now_s)

    async def answer(self, question: SlotQuestion) -> SlotAnswer:
        await self.go.wait()
        self.decided.append(question.holder)
        return SlotAnswer(replica=question.holder, verdict="done")

    def ask(self, question: SlotQuestion, who: str = "") -> None:
        async def reply(data: bytes) -> None:
            self.told.append(who + msgspec.msgpack.decode(data, type=SlotAnswer).replica)

        self.queue.put(encode(question), question, reply)

    async def work(self) -> None:
        """Until nothing waits."""
        self.go.set()
        running = asyncio.create_task(self.queue.run())
        while self.queue._first or self.queue._then or self.queue._present:  # noqa: ASYNC110 -- one turn at a time
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def acquire(holder: str) -> AcquireSlot:
    return AcquireSlot(holder=holder, number=1, request="a", candidates=("t0",))


async def test_an_equal_message_is_the_same_question_and_all_hear_its_answer() -> None:
    desk = Desk()
    desk.ask(acquire("r0"), "first ")
    desk.ask(acquire("r1"))
    for number in range(REPLIES_MAX):
        desk.ask(acquire("r0"), f"{number} ")
    await desk.work()
    assert desk.decided == ["r0", "r1"]
    assert desk.told == [f"{number} r0" for number in range(REPLIES_MAX)] + ["r1"]


async def test_a_message_that_comes_again_while_it_is_decided_needs_no_second_decision() -> None:
    desk = Desk()
    running = asyncio.create_task(desk.queue.run())
    desk.ask(acquire("r0"), "first ")
    while desk.queue._present is None:  # noqa: ASYNC110 -- one turn of the loop at a time
        await asyncio.sleep(0)
    desk.ask(acquire("r0"), "again ")
    await desk.work()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert desk.decided == ["r0"]
    assert desk.told == ["first r0", "again r0"]


async def test_leases_that_stand_go_before_new_ones() -> None:
    desk = Desk()
    desk.ask(acquire("r0"))
    desk.ask(RenewSlots(holder="r1", number=1))
    await desk.work()
    assert desk.decided == ["r1", "r0"]


async def test_what_is_asked_no_more_is_not_decided() -> None:
    desk = Desk()
    desk.ask(acquire("r0"))
    desk.ask(acquire("r1"))
    desk.now_s = STALE_S
    desk.ask(acquire("r1"))
    desk.now_s = STALE_S + 0.1
    await desk.work()
    assert desk.decided == ["r1"]
    assert desk.queue.dropped == 1


async def test_the_queue_is_bounded() -> None:
    desk = Desk()
    for number in range(WAITING_MAX + 3):
        desk.ask(acquire(f"r{number}"))
    assert desk.queue.dropped == 3


def test_who_still_waits_has_asked_again_by_then() -> None:
    timing = SlotTiming()
    assert timing.try_s + timing.pause_s < STALE_S
