"""Leaders that change: what a deposed one says about slots is void, and it does not even say it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.daemon.support import running, until
from tests.unit.slots.support import node, router, slot_of, told

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import LeaderElected, SlotChanged
from kvferry.core.messages import Announce
from kvferry.core.slots_messages import AcquireSlot, Lent, RenewSlots
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.codec import encode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.streams import StreamLimits
from kvferry.ledger.subjects import coord_subject
from kvferry.ports.log import FACTS_STREAM


async def intrude(log: MemoryLog, replica: str, term: int, *events: Any, seq: int = 1) -> None:
    """Another process writes to the coord subject of the routers' space."""
    batch = Batch(
        space=ROUTER_SPACE,
        node=replica,
        incarnation="e" * 16,
        epoch=term,
        lane="coord",
        seq=seq,
        entries=tuple(Entry(event=event) for event in events),
    )
    await log.append(coord_subject(ROUTER_SPACE), encode(batch), message_id=batch.message_id)


def ended(term: int, fence: int) -> SlotChanged:
    return SlotChanged(term=term, node="t0", change="replied", fence=fence)


def granted(term: int, fence: int) -> SlotChanged:
    return SlotChanged(
        term=term, node="t0", change="granted", fence=fence, holder="r9.a", request="z"
    )


async def test_the_next_leader_knows_all_leases() -> None:
    log = MemoryLog()
    async with running(log, replica="c-a") as first, router(log) as slots:
        await slots.register([node("t0"), node("t1")])
        held = await slots.acquire(["t0"], "a")
        async with running(log, replica="c-b") as second:
            await first.stop()
            await until(lambda: second.decider.term_in(ROUTER_SPACE) == 2, "the second leads")
            assert slot_of(second, "t0").request == "a"
            await slots.confirm(held)
            other = await slots.acquire(["t0", "t1"], "b")
            assert (other.node.name, other.fence) == ("t1", 2)
            await slots.end(held, "replied")
            assert (await slots.acquire(["t0", "t1"], "c")).fence == 3


async def test_a_deposed_leader_lends_nothing_and_confirms_nothing() -> None:
    log = MemoryLog()
    async with running(log, replica="c-a") as old, router(log) as slots:
        await slots.register([node("t0"), node("t1")])
        held = await slots.acquire(["t0"], "a")
        renew = RenewSlots(holder=slots.holder, number=2, lent=(held.lent,))
        assert (await old.slots.answer(renew)).verdict == "done", "it leads"
        # Another replica takes the lead and lends the node anew; this one has not read that yet.
        behind = old.projector.apply
        old.projector.apply = lambda stored: None  # type: ignore[method-assign]
        old.decider._timeout_s = 0.2
        await intrude(log, "c-z", 7, LeaderElected(term=7, replica="c-z"))
        await intrude(log, "c-z", 7, ended(7, 1), granted(7, 2), seq=2)
        lend = AcquireSlot(holder="r5.a", number=1, request="q", candidates=("t1",))
        repeat = AcquireSlot(holder=slots.holder, number=1, request="a", candidates=("t0",))
        for question in (renew, lend, repeat):
            answer = await old.slots.answer(question)
            assert (answer.verdict, answer.reason) == ("unavailable", "ledger"), question
        assert slot_of(old, "t0").request == "a", "its own state is behind"
        old.projector.apply = behind  # type: ignore[method-assign]
    assert ("granted", 2) in await told(log)
    assert len([one for one in await told(log) if one[0] == "granted"]) == 2


async def test_a_grant_that_was_overtaken_is_not_stored() -> None:
    log = MemoryLog()
    async with running(log, replica="c-a") as old, router(log) as slots:
        await slots.register([node("t0")])
        real = log.append

        async def overtaken(
            subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
        ) -> int:
            """Just before the grant is stored another replica is elected and lends the node."""
            log.append = real  # type: ignore[method-assign]
            await intrude(log, "c-z", 7, LeaderElected(term=7, replica="c-z"))
            await intrude(log, "c-z", 7, granted(7, 1), seq=2)
            old.standing.heard(Announce(replica="c-z", term=7, leader=True, position=0))
            return await real(subject, data, message_id=message_id, expected_last=expected_last)

        log.append = overtaken  # type: ignore[method-assign]
        lend = AcquireSlot(holder="r5.a", number=1, request="q", candidates=("t0",))
        answer = await old.slots.answer(lend)
        assert (answer.verdict, answer.leader) == ("not_leader", "c-z")
        assert (slot_of(old).holder, slot_of(old).fence) == ("r9.a", 1)
    assert await told(log) == [("registered", 0), ("granted", 1)]


async def test_where_the_stream_lost_its_beginning_a_node_must_be_seen_idle() -> None:
    log = MemoryLog(StreamLimits(facts_max_bytes=3_000))
    async with running(log, replica="c-a"), router(log) as slots:
        await slots.register([node("t0")])
        await slots.acquire(["t0"], "a")
        slots._leases.held.clear()
    await log.delete("checkpoints")
    last = (await log.bounds(FACTS_STREAM)).last
    number = 0
    while (await log.bounds(FACTS_STREAM)).first <= last:
        number += 1
        await intrude(log, "c-void", 1, *[ended(0, 0)] * 10, seq=number)
    async with running(log, replica="c-b") as second, router(log, "r1") as other:
        await other.register([node("t0")])
        slot = slot_of(second)
        assert (slot.phase, slot.drained) == ("unsure", False)
        assert slot.fence >= last, "no fence is given twice"
        lend = AcquireSlot(holder="r5.a", number=1, request="q", candidates=("t0",))
        assert (await second.slots.answer(lend)).reason == "unsure"


async def test_a_decision_that_cannot_be_read_may_have_been_a_lease() -> None:
    log = MemoryLog()
    async with running(log, replica="c-a") as coordinator, router(log) as slots:
        await slots.register([node("t0")])
        await log.append(coord_subject(ROUTER_SPACE), b"from a newer version", message_id="x")
        await until(lambda: slot_of(coordinator).phase == "unsure", "it could not be read")
        await log.append(coord_subject("other"), b"of another space", message_id="y")
        await slots.register([node("t1")])
        assert slot_of(coordinator, "t1").phase == "free"


@pytest.mark.parametrize("how", ["lent", "malformed"])
async def test_questions_that_are_none(how: str) -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log):
        before = await told(log)
        answers: list[bytes] = []

        async def reply(data: bytes) -> None:
            answers.append(data)

        if how == "malformed":
            await coordinator.slots.handle("s", b"\xc1", reply)
            assert coordinator.slots.malformed == 1
            assert answers == []
        else:
            renew = RenewSlots(holder="x", number=1, lent=(Lent("t9", 4),))
            assert (await coordinator.slots.answer(renew)).gone == (Lent("t9", 4),)
        assert await told(log) == before
