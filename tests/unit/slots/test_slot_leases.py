"""A router and a coordinator over one ledger: leases from the question to the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.daemon.support import ask, running, until
from tests.unit.slots.support import (
    changes,
    client_of,
    link_of,
    node,
    router,
    slot_of,
    slots_of,
    told,
)

from kvferry.core.messages import encode
from kvferry.core.slots import CANCELLED, REFUSED, REPLIED
from kvferry.core.slots_messages import AcquireSlot, EndSlot, Lent, RenewSlots, slots_subject
from kvferry.errors import ConfigError, SlotError, SlotLost, SlotsBusy, SlotsUnavailable
from kvferry.ledger.memory import MemoryLog
from kvferry.node.slots import SlotTiming


async def test_a_lease_from_the_question_to_the_reply() -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log) as slots:
        await slots.register([node("t0"), node("t1")])
        slot = await slots.acquire(["t1", "t0"], "a", "s", waited_s=0.25)
        assert (slot.node, slot.fence, slot.request) == (node("t1"), 1, "a")
        assert slot.sure()
        assert slot.send_within_s == 90.0
        await slots.confirm(slot)
        assert slot_of(coordinator, "t1").phase == "decoding"
        assert await slots.end(slot, REPLIED)
        assert not slot.sure()
        assert slot_of(coordinator, "t1").phase == "free"
        assert await slots.end(slot, REPLIED), "said again"
    named, other, granted, confirmed, ended = await changes(log)
    assert [one.change for one in (named, other, granted)] == ["registered"] * 2 + ["granted"]
    assert (granted.holder, granted.session, granted.waited_ms) == ("r0.a", "s", 250.0)
    assert (confirmed.change, confirmed.fence, confirmed.request) == ("confirmed", 1, "a")
    assert (ended.change, ended.fence, ended.request) == ("replied", 1, "a")


async def test_two_routers_never_share_a_node() -> None:
    log = MemoryLog()
    async with running(log), router(log, "r0") as one, router(log, "r1") as two:
        for each in (one, two):
            await each.register([node("t0")])
        slot = await one.acquire(["t0"], "a")
        with pytest.raises(SlotsBusy, match=r"for request a of router r0\.a") as busy:
            await two.acquire(["t0"], "a")
        assert busy.value.retry_after_s == 1.0, "no lease has ended yet"
        freed = asyncio.create_task(two.freed(20.0))
        await asyncio.sleep(0)
        assert await one.end(slot, CANCELLED)
        assert await freed, "the coordinator says that it is free"
        other = await two.acquire(["t0"], "a")
        assert other.fence == 2
        assert await one.end(slot, REPLIED), "said again"
        assert other.sure()
        with pytest.raises(SlotLost, match="is over"):
            await one.confirm(slot)
        await two.confirm(other)
        assert not await two.freed(0.05)
        await two.end(other, REPLIED)
    assert [one for one in await told(log) if one[1]] == [
        ("granted", 1),
        ("cancelled", 1),
        ("granted", 2),
        ("confirmed", 2),
        ("replied", 2),
    ]


async def test_many_at_once_get_one_lease_each() -> None:
    log = MemoryLog()
    nodes = [node(f"t{number}") for number in range(3)]
    names = [one.name for one in nodes]
    async with running(log), router(log, "r0") as one, router(log, "r1") as two:
        await one.register(nodes)
        asked = [each.acquire(names, f"q{n}") for n in range(10) for each in (one, two)]
        came = await asyncio.gather(*asked, return_exceptions=True)
        got = [slot for slot in came if not isinstance(slot, BaseException)]
        assert sorted(slot.node.name for slot in got) == names
        assert sorted(slot.fence for slot in got) == [1, 2, 3]
        refused = [error for error in came if isinstance(error, BaseException)]
        assert {type(error) for error in refused} == {SlotsBusy}
        assert len(refused) == 17


async def test_leases_are_renewed_while_their_router_lives() -> None:
    log = MemoryLog()
    # The limit is long, so that only a slow machine of a minute could make it pass.
    async with running(log) as coordinator, router(log) as slots:
        await slots.register([node("t0", idle_limit_ms=60_000)])
        slot = await slots.acquire(["t0"], "a")
        slot._sure_until_s -= slot.node.sure_s
        assert not slot.sure(), "as if nothing had been acknowledged since"
        slots._wake.set()
        await until(slot.sure, "it is renewed")
        assert slot_of(coordinator).phase == "granted"
        await slots.abandon(slot, "decode answered 504")
        assert slot_of(coordinator).phase == "unsure"
        assert not slot.sure()
        with pytest.raises(SlotsUnavailable, match="must first be seen idle") as refused:
            await slots.acquire(["t0"], "b")
        assert refused.value.reason == "unsure"


async def test_a_lease_that_its_router_never_heard_of_ends() -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log) as slots:
        await slots.register([node("t0")])
        kept = log.request

        async def deaf(subject: str, data: bytes, timeout_s: float) -> bytes:
            """The question arrives, its answer does not."""
            await kept(subject, data, timeout_s)
            raise SlotsUnavailable("no_coordinator", "the answer got lost")

        log.request = deaf  # type: ignore[method-assign]
        with pytest.raises(SlotsUnavailable):
            await slots.acquire(["t0"], "a")
        assert (slot_of(coordinator).phase, slot_of(coordinator).request) == ("granted", "a")
        log.request = kept  # type: ignore[method-assign]
        slots._wake.set()
        await until(lambda: slot_of(coordinator).phase == "free", "it is given back")
        assert slot_of(coordinator).last == REFUSED
        assert (await slots.acquire(["t0"], "a")).fence == 2


async def test_a_caller_that_goes_while_it_asks_leaves_no_lease() -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log) as slots:
        await slots.register([node("t0")])
        asking = asyncio.create_task(slots.acquire(["t0"], "a"))
        while not slots._leases._asking:  # noqa: ASYNC110 -- one turn of the loop at a time
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: slots_of(coordinator).granted == 1, "the question arrived all the same")
        await until(lambda: slot_of(coordinator).phase == "free", "it is given back")


async def test_what_holders_have_and_ask_for_is_not_taken_from_them() -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log) as slots:
        await slots.register([node("t0"), node("t1"), node("t2")])
        subject = slots_subject(coordinator.replica)

        async def say(message: Any) -> None:
            await log.request(subject, encode(message), 20.0)

        for number, name in ((5, "t0"), (6, "t1"), (9, "t2")):
            await say(
                AcquireSlot(holder="x", number=number, request=f"q{number}", candidates=(name,))
            )
        await say(RenewSlots(holder="y", number=99))
        assert [slot_of(coordinator, f"t{n}").phase for n in range(3)] == ["granted"] * 3
        await say(RenewSlots(holder="x", number=7, lent=(Lent("t0", 1),), asking=("q6",)))
        assert [slot_of(coordinator, f"t{n}").phase for n in range(3)] == ["granted"] * 3
        await say(RenewSlots(holder="x", number=8, lent=(Lent("t0", 1),)))
        assert slot_of(coordinator, "t1").phase == "free", "it says that it does not have it"
        assert slot_of(coordinator, "t2").phase == "granted", "asked for after that was said"
        await say(RenewSlots(holder="x", number=10))
        assert [slot_of(coordinator, f"t{n}").phase for n in range(3)] == ["free"] * 3


async def test_a_wrong_end_is_refused_and_idleness_is_not_for_routers_to_say() -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log) as slots:
        await slots.register([node("t0")])
        slot = await slots.acquire(["t0"], "a")
        with pytest.raises(ValueError, match="not with 'idle'"):
            await slots.end(slot, "idle")
        end = EndSlot(holder=slots.holder, lent=slot.lent, how="idle")
        answer = await coordinator.slots.answer(end)
        assert (answer.verdict, answer.reason) == ("refused", "phase")
        await slots.confirm(slot)
        await slots.end(slot, REFUSED, "prefill failed")
        assert slot_of(coordinator).phase == "unsure", "for all that is known it was admitted"
        slots._leases.begin("b")
        with pytest.raises(ValueError, match="has a slot already"):
            await slots.acquire(["t0"], "b")


async def test_nodes_are_named_again_to_a_ledger_that_does_not_know_them() -> None:
    first, second = MemoryLog(), MemoryLog()
    async with client_of(first) as (slots, link):
        async with running(first):
            await until(slots.available, "the first leads")
            await slots.register([node("t0")])
            await slots.end(await slots.acquire(["t0"], "a"), REPLIED)
        await link.use(second)
        async with running(second):
            await until(slots.available, "the second leads")
            assert (await slots.acquire(["t0"], "b")).fence == 1
            with pytest.raises(SlotsUnavailable, match="no decode node t9"):
                await slots.acquire(["t9"], "c")


async def test_a_node_that_another_router_names_otherwise_is_refused() -> None:
    log = MemoryLog()
    async with running(log), router(log) as slots:
        await slots.register([node("t0", "http://h:1")])
        with pytest.raises(SlotError, match="Call t1 t0 on every router"):
            await slots.register([node("t1", "http://h:1")])


async def test_without_a_coordinator_nobody_waits_for_long() -> None:
    log = MemoryLog()
    async with client_of(log, ask_within_s=0.3) as (slots, _):
        assert not slots.available()
        with pytest.raises(SlotsUnavailable, match="no coordinator is heard") as refused:
            await slots.acquire(["t0"], "a")
        assert refused.value.reason == "no_coordinator"
        with pytest.raises(SlotsUnavailable):
            await slots.register([node("t0")])
        async with running(log) as coordinator:
            await until(lambda: slots_of(coordinator).nodes, "it is named by itself")


async def test_an_end_that_nobody_heard_is_said_again() -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log, end_within_s=0.2) as slots:
        await slots.register([node("t0")])
        slot = await slots.acquire(["t0"], "a")
        link_of(slots).cut = True
        assert not await slots.end(slot, REPLIED)
        assert slot_of(coordinator).phase == "granted"
        link_of(slots).cut = False
        await until(lambda: slot_of(coordinator).phase == "free", "it is said again")
        assert slot_of(coordinator).last == REPLIED


async def test_an_operator_drains_a_node() -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log) as slots:
        await slots.register([node("t0")])
        slot = await slots.acquire(["t0"], "a")
        answer = await ask(log, coordinator, verb="drain", node="t0", who="ana")
        assert answer["changed"]
        assert (answer["slots"][0]["drained"], answer["slots"][0]["phase"]) == (True, "granted")
        assert not (await ask(log, coordinator, verb="drain", node="t0"))["changed"]
        await slots.end(slot, REPLIED)
        with pytest.raises(SlotsUnavailable, match="node t0 is drained"):
            await slots.acquire(["t0"], "b")
        refused = await ask(log, coordinator, verb="undrain", node="t7")
        assert "known: t0" in refused["error"]
        freed = asyncio.create_task(slots.freed(20.0))
        await asyncio.sleep(0)
        assert (await ask(log, coordinator, verb="undrain", node="t0"))["changed"]
        assert await freed
        await slots.acquire(["t0"], "b")


@pytest.mark.parametrize("option", SlotTiming.__struct_fields__)
def test_a_wrong_option_is_named(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        SlotTiming(**{option: 0.0})
