"""Plans are asked of live replicas, hedged, bounded in time, and answered exactly once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.node_agent.plan_support import REQUEST, Ask, announce, client, freeze, sent, serve
from tests.unit.node_agent.support import until

from kvferry.core.messages import PlanAnswer, encode, plan_subject
from kvferry.ledger.memory import MemoryLog
from kvferry.ports.log import Reply


async def test_an_answer_comes_once_and_on_the_agents_thread() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus) as plans:
        assert not plans.available()
        await serve(bus, "c1", asked)
        await announce(bus, plans, "c1")
        assert plans.available()
        ask = Ask()
        await asyncio.to_thread(plans.ask, REQUEST, ask.done)
        answer, miss = await ask.result()
        assert (answer.replica if answer else "", miss) == ("c1", "")
        assert ask.threads == [threading.current_thread()]


async def test_without_a_replica_there_is_no_coordinator() -> None:
    async with client(MemoryLog()) as plans:
        ask = Ask()
        plans.ask(REQUEST, ask.done)
        assert await ask.result() == (None, "no_coordinator")


async def test_a_frozen_replica_is_hedged_and_then_avoided() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus, hedge_ms=20.0, plan_deadline_ms=20_000.0) as plans:
        await freeze(bus, "c1", asked)
        await serve(bus, "c2", asked)
        await announce(bus, plans, "c1", "c2")
        first = Ask()
        plans.ask(REQUEST, first.done)
        answer, _ = await first.result()
        assert answer is not None
        assert answer.replica == "c2"
        assert asked == ["c1", "c2"]
        second = Ask()
        plans.ask(REQUEST, second.done)
        assert (await second.result())[0] is not None
        assert asked == ["c1", "c2", "c2"]
        await until(lambda: len(asyncio.all_tasks()) < 8, "no call of a loser is left")


async def test_two_frozen_replicas_cost_no_plan() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus, hedge_ms=10.0, plan_deadline_ms=20_000.0) as plans:
        await freeze(bus, "c1", asked)
        await freeze(bus, "c2", asked)
        await serve(bus, "c3", asked)
        await announce(bus, plans, "c1", "c2", "c3")
        ask = Ask()
        plans.ask(REQUEST, ask.done)
        answer, _ = await ask.result()
        assert answer is not None
        assert answer.replica == "c3"
        assert asked == ["c1", "c2", "c3"]


async def test_a_replica_that_went_away_hands_over_at_once() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus, hedge_ms=20_000.0, plan_deadline_ms=20_000.0) as plans:
        await serve(bus, "c2", asked)
        await announce(bus, plans, "c1", "c2")
        ask = Ask()
        plans.ask(REQUEST, ask.done)
        answer, _ = await ask.result()
        assert answer is not None
        assert answer.replica == "c2"


async def test_an_answer_that_cannot_be_decoded_is_none() -> None:
    bus = MemoryLog()

    async def babble(subject: str, data: bytes, reply: Reply | None) -> None:
        assert reply is not None
        await reply(b"\xc1 what?")

    async with client(bus) as plans:
        await bus.subscribe(plan_subject("c1"), babble)
        await announce(bus, plans, "c1")
        ask = Ask()
        plans.ask(REQUEST, ask.done)
        assert await ask.result() == (None, "no_coordinator")


async def test_a_late_answer_after_the_deadline_does_not_count_twice() -> None:
    bus = MemoryLog()
    release, asked = asyncio.Event(), list[str]()
    late: list[Callable[[], Awaitable[None]]] = []

    async def slow(subject: str, data: bytes, reply: Reply | None) -> None:
        assert reply is not None
        asked.append("c1")
        await release.wait()
        await reply(encode(PlanAnswer(replica="c1")))
        late.append(release.wait)  # type: ignore[arg-type]

    async with client(bus, plan_deadline_ms=20.0) as plans:
        await bus.subscribe(plan_subject("c1"), slow)
        await announce(bus, plans, "c1")
        ask = await sent(plans, asked)
        assert await ask.result() == (None, "plan_late")
        release.set()
        await until(lambda: late, "the late answer was given")
        assert len(ask.calls) == 1


async def test_too_many_asks_at_once_are_late() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus, plans_max=2, plan_deadline_ms=20_000.0) as plans:
        await freeze(bus, "c1", asked)
        await announce(bus, plans, "c1")
        asks = [Ask() for _ in range(3)]
        for ask in asks:
            plans.ask(REQUEST, ask.done)
        assert await asks[2].result() == (None, "plan_late")
        assert not asks[0].ended.is_set()
        await plans.close()
        assert [await ask.result() for ask in asks[:2]] == [(None, "no_coordinator")] * 2


async def test_closing_ends_every_ask_and_later_ones_at_once() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus, plan_deadline_ms=20_000.0) as plans:
        await freeze(bus, "c1", asked)
        await announce(bus, plans, "c1")
        running, scheduled = Ask(), Ask()
        plans.ask(REQUEST, running.done)
        await until(lambda: asked, "the first is asked")
        plans.ask(REQUEST, scheduled.done)
        await plans.close()
        assert running.calls == [(None, "no_coordinator")]
        assert scheduled.calls == [(None, "no_coordinator")]
        after = Ask()
        plans.ask(REQUEST, after.done)
        assert after.calls == [(None, "no_coordinator")]


async def test_a_failing_callback_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bus, asked = MemoryLog(), []

    def broken(answer: PlanAnswer | None, miss: str) -> None:
        raise ValueError("boom")

    async with client(bus) as plans:
        await serve(bus, "c1", asked)
        await announce(bus, plans, "c1")
        plans.ask(REQUEST, broken)
        ask = Ask()
        plans.ask(REQUEST, ask.done)
        assert (await ask.result())[0] is not None
        assert "callback failed" in caplog.text
