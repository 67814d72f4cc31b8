"""An agent on its own thread against a real nats-server, which comes late, dies and hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.unit.node_agent.support import (
    BOUND_S,
    SPACE,
    assert_contiguous,
    folded,
    free_port,
    identity,
    ledger,
    offer,
    running,
    settings,
    stored,
    turn,
    turns,
    until,
    wait_until,
)

from kvferry.core.events import BLOCKS, FACTS, Produced
from kvferry.core.messages import (
    ANNOUNCE_SUBJECT,
    Announce,
    PlanAnswer,
    PlanRequest,
    encode,
    plan_subject,
)
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.outbox.outbox import Outbox
from kvferry.ports.log import BLOCKS_STREAM, Reply

REQUEST = PlanRequest(
    space=SPACE, node="p0", hashes=b"", stride=1, block_size=16, prompt_tokens=100
)


def all_stored(outbox: Outbox) -> bool:
    return all(outbox.counts(lane).waiting == 0 for lane in (FACTS, BLOCKS))


async def test_facts_and_detail_reach_a_real_ledger(
    server: EmbeddedServer, nothing_left: None
) -> None:
    outbox = Outbox()
    async with ledger(server.url) as log:
        with running(settings(server.url), outbox) as agent:
            agent.join(identity())
            agent.gauges("blocks_free", 1)
            for number in range(1000):
                outbox.facts(turn(number))
                outbox.blocks(Produced(request="r", start=number, count=1, tail=bytes(32)))
            await until(lambda: all_stored(outbox), "all is stored")
            await until(lambda: agent.state == "joined", "joined")
        assert agent.state == "stopped"
        batches = await stored(log)
        detail = await stored(log, BLOCKS_STREAM)
        state = await folded(log)
    assert_contiguous(batches + detail)
    assert turns(batches) == [f"r{n}" for n in range(1000)]
    assert sum(len(batch.entries) for batch in detail) == 1000
    assert state.space(SPACE).nodes["p0"].status == "closed"


async def test_a_ledger_that_was_absent_from_birth_gets_everything_that_waited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nothing_left: None
) -> None:
    port = free_port()
    url = f"nats://127.0.0.1:{port}"
    outbox = Outbox()
    with running(settings(url), outbox) as agent:
        agent.join(identity())
        outbox.facts(offer("o1", 3))
        for number in range(100):
            outbox.facts(turn(number))
        await until(lambda: agent.state == "alone", "alone")
        assert not agent.plans.available()
        await asyncio.sleep(0.3)  # several attempts, one warning
        with EmbeddedServer(tmp_path / "late", port=port):
            async with ledger(url) as log:
                await until(lambda: all_stored(outbox), "all that waited is stored")
                await until(lambda: agent.state == "joined", "joined")
                batches = await stored(log)
                await asyncio.to_thread(agent.stop)
    assert_contiguous(batches)
    assert turns(batches) == [f"r{n}" for n in range(100)]
    warnings = [r for r in caplog.records if "serves without a ledger" in r.message]
    assert len(warnings) == 1
    assert url in warnings[0].message
    assert "kvferry up" in warnings[0].message


async def test_killing_the_server_under_load_loses_nothing(
    server: EmbeddedServer, nothing_left: None
) -> None:
    outbox = Outbox()
    handed = 0
    async with ledger(server.url) as log:
        with running(settings(server.url), outbox) as agent:
            agent.join(identity())
            await until(lambda: agent.state == "joined", "joined")
            for kill in range(2):
                goal = outbox.counts(FACTS).stored + 500
                victim = server.pid
                assert victim is not None
                killed = False
                end = time.monotonic() + 60
                while not (killed and outbox.counts(FACTS).stored > goal):
                    assert time.monotonic() < end, f"no progress after kill {kill}"
                    if outbox.pressure < 0.7:
                        for _ in range(20):
                            outbox.facts(turn(handed))
                            handed += 1
                    if not killed and outbox.counts(FACTS).stored > goal - 250:
                        os.kill(victim, signal.SIGKILL)
                        killed = True
                        goal = handed
                    await asyncio.sleep(0.002)
            await until(lambda: all_stored(outbox), "the rest is stored", 60)
        batches = await stored(log)
    assert_contiguous(batches)
    assert {batch.epoch for batch in batches} == {1}
    assert turns(batches) == [f"r{n}" for n in range(handed)]
    counts = outbox.counts(FACTS)
    assert (counts.handed, counts.stored, counts.dropped) == (handed, handed, 0)
    assert server.restarts == 2


async def test_an_outage_longer_than_the_outbox_ends_in_one_gap_and_the_truth(
    server: EmbeddedServer, nothing_left: None
) -> None:
    outbox = Outbox(facts_max=256)
    async with ledger(server.url) as log:
        with running(settings(server.url), outbox) as agent:
            agent.join(identity())
            outbox.facts(offer("before", 1))
            await until(lambda: all_stored(outbox), "stored")
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            for number in range(400):
                outbox.facts(turn(number))
            outbox.facts(offer("during", 2))
            assert not outbox.admit()
            dropped = outbox.counts(FACTS).dropped
            assert dropped >= 100
            await until(lambda: all_stored(outbox), "the rest is stored", 60)
            outbox.facts(turn(5000))
            await until(lambda: all_stored(outbox), "the last is stored", 60)
            state = await folded(log)
    space = state.space(SPACE)
    assert space.totals.gaps == {FACTS: dropped}
    assert set(space.offers) == {"before", "during"}
    counts = outbox.counts(FACTS)
    assert counts.handed == counts.stored + dropped


def test_stopping_without_any_server_is_bounded(nothing_left: None) -> None:
    agent = NodeAgent(settings(f"nats://127.0.0.1:{free_port()}"), Outbox())
    agent.start()
    agent.join(identity())
    begun = time.monotonic()
    agent.stop(2.0)
    assert time.monotonic() - begun < BOUND_S / 2
    assert agent.state == "stopped"
    agent.stop(2.0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_stopping_with_a_dead_or_frozen_server_is_bounded(
    tmp_path: Path, how: signal.Signals, nothing_left: None
) -> None:
    outbox = Outbox()
    with EmbeddedServer(tmp_path / "store") as server:
        async with ledger(server.url):
            agent = NodeAgent(settings(server.url), outbox)
            agent.start()
            agent.join(identity())
            await until(lambda: agent.state == "joined", "joined")
        victim = server.pid
        assert victim is not None
        if how == signal.SIGKILL:
            # No supervision: it stays dead.
            server._stopping.set()
        os.kill(victim, how)
        try:
            for number in range(2000):
                outbox.facts(turn(number))
                outbox.facts(offer(f"o{number}", 300))
            begun = time.monotonic()
            await asyncio.to_thread(agent.stop, 1.5)
            took_s = time.monotonic() - begun
        finally:
            if how == signal.SIGSTOP:
                os.kill(victim, signal.SIGCONT)
        assert took_s < BOUND_S / 2
        assert agent.state == "stopped"
        assert outbox.counts(FACTS).waiting == 0
        assert all(thread.name != "kvferry-agent" for thread in threading.enumerate())


def test_without_a_url_transfers_go_on_and_nothing_is_kept(nothing_left: None) -> None:
    outbox = Outbox()
    agent = NodeAgent(settings(""), outbox)
    agent.start()
    agent.join(identity())
    wait_until(lambda: agent.state == "alone", "alone")
    for number in range(20_000):
        outbox.facts(turn(number))
    assert outbox.reserve()
    assert outbox.pressure < 0.01
    assert not agent.plans.available()
    agent.stop()
    assert not outbox.admit()


def test_an_agent_that_never_started_stops(nothing_left: None) -> None:
    agent = NodeAgent(settings(""), Outbox())
    calls: list[tuple[PlanAnswer | None, str]] = []
    agent.plans.ask(REQUEST, lambda answer, miss: calls.append((answer, miss)))
    assert calls == [(None, "no_coordinator")]
    agent.stop()
    assert agent.state == "stopped"
    with pytest.raises(RuntimeError):
        agent.start()


async def test_plans_go_over_a_real_bus_with_a_frozen_replica_beside(
    server: EmbeddedServer, nothing_left: None
) -> None:
    async with ledger(server.url) as bus:

        async def frozen(subject: str, data: bytes, reply: Reply | None) -> None:
            return

        async def answers(subject: str, data: bytes, reply: Reply | None) -> None:
            assert reply is not None
            await reply(encode(PlanAnswer(replica="c2", position=3)))

        await bus.subscribe(plan_subject("c1"), frozen)
        await bus.subscribe(plan_subject("c2"), answers)
        with running(settings(server.url, plan_deadline_ms=20_000.0), Outbox()) as agent:

            async def announced() -> None:
                for replica in ("c1", "c2"):
                    message = Announce(replica=replica, term=1, leader=False, position=1)
                    await bus.publish(ANNOUNCE_SUBJECT, encode(message))

            for _ in range(1000):
                await announced()
                if agent.plans.available():
                    break
                await asyncio.sleep(0.01)
            got: list[tuple[PlanAnswer | None, str, str]] = []
            for number in range(20):
                await announced()
                agent.plans.ask(
                    REQUEST,
                    lambda answer, miss: got.append(
                        (answer, miss, threading.current_thread().name)
                    ),
                )
                await until(lambda: len(got) == number + 1, "an answer")  # noqa: B023
            assert {(a.replica if a else "", miss, thread) for a, miss, thread in got} == {
                ("c2", "", "kvferry-agent")
            }


def test_the_contiguity_check_has_teeth(server: EmbeddedServer) -> None:
    async def two_epochs_with_a_hole() -> None:
        outbox = Outbox()
        async with ledger(server.url) as log:
            with running(settings(server.url), outbox) as agent:
                agent.join(identity())
                for number in range(600):
                    outbox.facts(turn(number))
                await until(lambda: all_stored(outbox), "stored")
            batches = await stored(log)
        assert_contiguous(batches)
        with pytest.raises(AssertionError, match="goes on at"):
            assert_contiguous(batches[:1] + batches[2:])

    asyncio.run(two_epochs_with_a_hole())
