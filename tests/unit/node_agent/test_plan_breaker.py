"""Whom to ask for a plan, and when not to ask: silence, deadlines, and stalls of everybody."""

from __future__ import annotations

import time

from tests.unit.node_agent.plan_support import (
    ASKS_MAX,
    REQUEST,
    Ask,
    announce,
    client,
    freeze,
    sent,
)

from kvferry.ledger.memory import MemoryLog
from kvferry.node.plans.replicas import Breaker, Replicas


async def test_the_deadline_holds_and_failures_open_the_breaker() -> None:
    bus, asked = MemoryLog(), []
    async with client(
        bus, plan_deadline_ms=30.0, breaker_failures=3, breaker_open_s=4800.0
    ) as plans:
        await freeze(bus, "c1", asked)
        await announce(bus, plans, "c1")
        # On a busy machine some are late by this thread's fault, which does not count.
        for _ in range(ASKS_MAX):
            ask = Ask()
            plans.ask(REQUEST, ask.done)
            assert await ask.result() == (None, "plan_late")
            if not plans.available():
                break
        assert not plans.available()
        refused = Ask()
        plans.ask(REQUEST, refused.done)
        assert await refused.result() == (None, "no_coordinator")
        before = len(asked)
        assert before >= 3
        plans._breaker._open_until_s = 0.0  # It has been open for long enough.
        for _ in range(ASKS_MAX):
            assert plans.available(), "the breaker lets one try"
            trial = Ask()
            plans.ask(REQUEST, trial.done)
            assert await trial.result() == (None, "plan_late")
            if not plans.available():
                break
        assert not plans.available()
        assert len(asked) > before


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
    breaker = Breaker(failures=2, open_s=8.0)
    breaker.failed(0.0, 1.0)
    assert breaker.enter(1.0)
    breaker.failed(1.0, 2.0)
    assert not breaker.closed(2.5)
    assert breaker.enter(3.0)
    assert not breaker.enter(3.0)
    breaker.abandoned()
    assert breaker.enter(3.5)
    breaker.succeeded()
    assert breaker.enter(3.5)
    assert breaker.enter(3.5)


def test_plans_that_fail_together_are_one_failure() -> None:
    breaker = Breaker(failures=3, open_s=8.0)
    for late in range(20):
        breaker.failed(0.0 + late / 1000, 0.04 + late / 1000)
    assert breaker.closed(0.06)
    breaker.failed(0.06, 0.1)
    assert breaker.closed(0.1)
    breaker.failed(0.1, 0.14)
    assert not breaker.closed(0.2)


def test_the_breaker_opens_for_longer_each_time() -> None:
    breaker = Breaker(failures=1, open_s=8.0)
    now_s, opened = 0.0, []
    for _ in range(6):
        breaker.failed(now_s, now_s)
        opened.append(next(s for s in range(1, 20) if breaker.closed(now_s + s)))
        now_s += opened[-1]
    assert opened == [1, 2, 4, 8, 8, 8]
    breaker.succeeded()
    breaker.failed(now_s, now_s)
    assert breaker.closed(now_s + 1)


async def test_a_stall_does_not_open_the_breaker() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus, plan_deadline_ms=40.0, breaker_failures=3) as plans:
        await freeze(bus, "c1", asked)
        await announce(bus, plans, "c1")
        asks = [Ask() for _ in range(20)]
        for ask in asks:
            plans.ask(REQUEST, ask.done)
        assert {await ask.result() for ask in asks} == {(None, "plan_late")}
        assert plans.available()


async def test_who_stands_still_itself_does_not_blame_the_replicas() -> None:
    bus, asked = MemoryLog(), []
    async with client(bus, plan_deadline_ms=500.0, breaker_failures=1) as plans:
        await freeze(bus, "c1", asked)
        await announce(bus, plans, "c1")
        running = await sent(plans, asked)
        unasked = Ask()
        plans.ask(REQUEST, unasked.done)
        # This thread itself stands still, past both deadlines.
        time.sleep(0.7)  # noqa: ASYNC251
        assert await running.result() == (None, "plan_late")
        assert await unasked.result() == (None, "plan_late")
        assert plans.available()
        assert len(asked) == 1
