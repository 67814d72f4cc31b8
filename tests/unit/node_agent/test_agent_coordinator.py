"""An agent with a real coordinator: plans, pause, silence, and two processes of one name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.unit.node_agent.support import (
    SPACE,
    assert_contiguous,
    identity,
    ledger,
    offer,
    running,
    settings,
    stored,
    turn,
    turns,
    until,
)

from kvferry.core.messages import PlanAnswer, PlanRequest, query_subject
from kvferry.daemon.coordinator import Coordinator
from kvferry.daemon.messages import Query, decode_answer, encode_query
from kvferry.daemon.settings import CoordinatorSettings
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.node.outbox.outbox import Outbox


@asynccontextmanager
async def coordinating(
    server: EmbeddedServer, **changes: float
) -> AsyncIterator[tuple[Coordinator, JetStreamLedger]]:
    async with ledger(server.url) as connection:
        options: dict[str, float] = {"announce_every_s": 0.1, "tick_s": 0.05}
        coordinator = Coordinator(
            connection,
            connection,
            connection,
            CoordinatorSettings(**(options | changes)),  # type: ignore[arg-type]
        )
        task = asyncio.create_task(coordinator.run())
        try:
            yield coordinator, connection
        finally:
            await coordinator.stop()
            await task


def offers(coordinator: Coordinator) -> set[str]:
    space = coordinator.projector.state.spaces.get(SPACE)
    return set(space.offers) if space is not None else set()


async def test_an_offer_is_planned_and_a_pause_arrives(server: EmbeddedServer) -> None:
    source_outbox, target_outbox = Outbox(), Outbox()
    async with coordinating(server) as (coordinator, bus):
        with (
            running(settings(server.url, node="d0"), source_outbox) as source,
            running(settings(server.url, plan_deadline_ms=20_000.0), target_outbox) as target,
        ):
            source.join(identity("d0" * 8, address="127.0.0.1:7", backends=("tcp",)))
            target.join(identity(backends=("tcp",)))
            kept = offer("o1", 4)
            source_outbox.facts(kept)
            await until(lambda: offers(coordinator) == {"o1"}, "the offer is known")
            await until(target.plans.available, "a coordinator is there")
            got: list[tuple[PlanAnswer | None, str]] = []
            request = PlanRequest(
                space=SPACE,
                node="p0",
                hashes=kept.hashes,
                stride=1,
                block_size=128,
                prompt_tokens=600,
            )
            await until(lambda: target.state == "joined", "the target joined")
            nodes = coordinator.projector.state.space(SPACE).nodes
            await until(lambda: "p0" in nodes, "the coordinator knows the target")
            target.plans.ask(request, lambda answer, miss: got.append((answer, miss)))
            await until(lambda: got, "a plan")
            answer = got[0][0]
            assert answer is not None
            assert [(c.node, c.blocks, c.address) for c in answer.candidates] == [
                ("d0", 4, "127.0.0.1:7")
            ]
            for verb, mode in (("pause", "paused"), ("resume", "on")):
                query = encode_query(Query(verb=verb, space=SPACE, node="p0"))
                reply = await bus.request(query_subject(coordinator.replica), query, 20.0)
                assert "error" not in decode_answer(reply)
                await until(lambda: target.mode == mode, mode)  # noqa: B023
            assert source.mode == "on"


async def test_a_frozen_node_is_given_up_and_comes_back_with_what_it_holds(
    server: EmbeddedServer,
) -> None:
    outbox = Outbox()
    async with coordinating(server, silent_after_s=1.0) as (coordinator, log):
        with running(settings(server.url), outbox) as agent:
            agent.join(identity())
            outbox.facts(offer("o1", 4))
            await until(lambda: offers(coordinator) == {"o1"}, "the offer is known")
            node = coordinator.projector.state.space(SPACE).nodes["p0"]
            await until(lambda: coordinator.standing.leading, "somebody leads")
            loop = agent._loop
            assert loop is not None
            given_up = asyncio.Event()
            asyncio_loop = asyncio.get_running_loop()

            def freeze() -> None:
                end = time.monotonic() + 30
                while node.status == "joined" and time.monotonic() < end:
                    time.sleep(0.02)
                asyncio_loop.call_soon_threadsafe(given_up.set)

            loop.call_soon_threadsafe(freeze)
            outbox.facts(turn(1))
            async with asyncio.timeout(30):
                await given_up.wait()
            await until(lambda: "epoch 2" in agent.why, "a new epoch")
            await until(lambda: offers(coordinator) == {"o1"}, "the offer is back")
            outbox.facts(turn(2))
            await until(lambda: outbox.counts("facts").waiting == 0, "all is stored")
        batches = await stored(log)
    assert_contiguous(batches)
    assert turns(batches) == ["r1", "r2"]


async def test_of_two_processes_with_one_name_the_later_goes_on(server: EmbeddedServer) -> None:
    first_outbox, second_outbox = Outbox(), Outbox()
    async with coordinating(server) as (coordinator, log):
        with running(settings(server.url), first_outbox) as first:
            first.join(identity("a" * 16))
            first_outbox.facts(offer("o1", 1))
            await until(lambda: offers(coordinator) == {"o1"}, "the first is known")
            with running(settings(server.url), second_outbox) as second:
                second.join(identity("b" * 16))
                second_outbox.facts(offer("o2", 1))
                await until(lambda: first.state == "duplicate", "the first stops")
                await until(lambda: not first_outbox.admit(), "nothing is admitted")
                first_outbox.facts(turn(1))
                second_outbox.facts(turn(2))
                await until(lambda: second_outbox.counts("facts").waiting == 0, "stored")
                await until(lambda: offers(coordinator) == {"o2"}, "the second is known")
                assert second.state == "joined"
        assert turns(await stored(log)) == ["r2"]


async def test_restarting_the_ledger_and_the_coordinator_needs_nobodys_help(
    server: EmbeddedServer,
) -> None:
    outbox = Outbox()
    with running(settings(server.url), outbox) as agent:
        agent.join(identity())
        async with coordinating(server) as (coordinator, _):
            outbox.facts(offer("o1", 1))
            await until(lambda: offers(coordinator) == {"o1"}, "the offer is known")
        outbox.facts(offer("o2", 1))
        async with coordinating(server) as (coordinator, _):
            await until(lambda: offers(coordinator) == {"o1", "o2"}, "both offers are known")
            assert agent.state == "joined"
