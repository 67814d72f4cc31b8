"""Plans are asked of live replicas, hedged, bounded in time, and answered exactly once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.unit.node_agent.support import SPACE, settings, until

from kvferry.core.messages import (
    ANNOUNCE_SUBJECT,
    Announce,
    PlanAnswer,
    PlanRequest,
    encode,
    plan_subject,
)
from kvferry.ledger.memory import MemoryLog
from kvferry.node.plans.client import PlanClient
from kvferry.node.plans.replicas import Breaker, Replicas
from kvferry.ports.log import Reply

REQUEST = PlanRequest(
    space=SPACE, node="p0", hashes=b"", stride=1, block_size=16, prompt_tokens=100
)


class Ask:
    """One ask and what became of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[PlanAnswer | None, str]] = []
        self.threads: list[threading.Thread] = []
        self.ended = asyncio.Event()

    def done(self, answer: PlanAnswer | None, miss: str) -> None:
        self.calls.append((answer, miss))
        self.threads.append(threading.current_thread())
        self.ended.set()

    async def result(self) -> tuple[PlanAnswer | None, str]:
        async with asyncio.timeout(30):
            await self.ended.wait()
        assert len(self.calls) == 1
        return self.calls[0]


@asynccontextmanager
async def client(bus: MemoryLog, **changes: object) -> AsyncIterator[PlanClient]:
    plans = PlanClient(settings("nats://127.0.0.1:1", **changes))
    plans.open(asyncio.get_running_loop())
    plans.use(bus)
    stop = await bus.subscribe(ANNOUNCE_SUBJECT, plans.announced)
    try:
        yield plans
    finally:
        await plans.close()
        await stop()
        await bus.close()


async def announce(bus: MemoryLog, plans: PlanClient, *replicas: str) -> None:
    for replica in replicas:
        message = Announce(replica=replica, term=1, leader=False, position=1)
        await bus.publish(ANNOUNCE_SUBJECT, encode(message))
    await until(
        lambda: len(plans._replicas.live(asyncio.get_running_loop().time())) == len(replicas),
        "the replicas are known",
    )


async def serve(bus: MemoryLog, replica: str, counter: list[str]) -> None:
    async def handle(subject: str, data: bytes, reply: Reply | None) -> None:
        counter.append(replica)
        assert reply is not None
        await reply(encode(PlanAnswer(replica=replica, position=7)))

    await bus.subscribe(plan_subject(replica), handle)


async def freeze(bus: MemoryLog, replica: str, counter: list[str]) -> None:
    async def handle(subject: str, data: bytes, reply: Reply | None) -> None:
        counter.append(replica)

    await bus.subscribe(plan_subject(replica), handle)


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


async def test_the_deadline_holds_and_failures_open_the_breaker() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus, plan_deadline_ms=30.0, breaker_failures=3, breaker_open_s=0.3) as plans:
        await freeze(bus, "c1", asked)
        await announce(bus, plans, "c1")
        for _ in range(3):
            ask = Ask()
            plans.ask(REQUEST, ask.done)
            assert await ask.result() == (None, "plan_late")
        assert not plans.available()
        refused = Ask()
        plans.ask(REQUEST, refused.done)
        assert await refused.result() == (None, "no_coordinator")
        assert len(asked) == 3
        await until(plans.available, "the breaker lets one try")
        trial = Ask()
        plans.ask(REQUEST, trial.done)
        assert await trial.result() == (None, "plan_late")
        assert not plans.available()
        assert len(asked) == 4


async def test_a_late_answer_after_the_deadline_does_not_count_twice() -> None:
    bus = MemoryLog()
    release = asyncio.Event()
    late: list[Callable[[], Awaitable[None]]] = []

    async def slow(subject: str, data: bytes, reply: Reply | None) -> None:
        assert reply is not None
        await release.wait()
        await reply(encode(PlanAnswer(replica="c1")))
        late.append(release.wait)  # type: ignore[arg-type]

    async with client(bus, plan_deadline_ms=20.0) as plans:
        await bus.subscribe(plan_subject("c1"), slow)
        await announce(bus, plans, "c1")
        ask = Ask()
        plans.ask(REQUEST, ask.done)
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


def test_a_silent_replica_is_not_asked_and_its_pace_is_forgotten() -> None:
    replicas = Replicas(silent_s=3.0)
    replicas.heard("c1", 0.0)
    replicas.heard("c2", 0.0)
    replicas.took("c1", 100.0)
    assert replicas.live(1.0) == ["c2", "c1"]
    replicas.heard("c2", 3.0)
    assert replicas.live(3.5) == ["c2"]
    assert replicas.any_live(5.9)
    assert not replicas.any_live(6.1)
    replicas.heard("c1", 8.0)
    replicas.heard("c2", 8.0)
    replicas.took("c2", 5.0)
    assert replicas.live(8.0) == ["c1", "c2"]


def test_the_breaker_lets_exactly_one_try() -> None:
    breaker = Breaker(failures=2, open_s=1.0)
    breaker.failed(0.0)
    assert breaker.enter(0.0)
    breaker.failed(0.0)
    assert not breaker.closed(0.5)
    assert breaker.enter(1.5)
    assert not breaker.enter(1.5)
    breaker.abandoned()
    assert breaker.enter(1.6)
    breaker.succeeded()
    assert breaker.enter(1.6)
    assert breaker.enter(1.6)
