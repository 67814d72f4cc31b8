"""Against a real nats-server: a ledger that lost a part makes nodes tell anew, never a wrong index.

The nodes are shipped agents. What one of them withdrew in the lost part must not be found again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.daemon.support import running, until
from tests.unit.node_agent.support import SPACE, identity, offer, settings

from kvferry.core.events import FACTS, Evicted, Retained
from kvferry.core.messages import PlanRequest
from kvferry.daemon.coordinator import Coordinator
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ledger.life import Life
from kvferry.ledger.subjects import lane_subject
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.outbox.outbox import Outbox
from kvferry.ports.log import FACTS_STREAM

KEPT, WITHDRAWN, LATER = offer("d0.1", 8), offer("d0.2", 8), offer("d0.3", 8)


class Engine:
    """A node with the shipped agent and no engine."""

    def __init__(self, url: str, name: str, number: int) -> None:
        self.outbox = Outbox()
        self.agent = NodeAgent(settings(url, node=name), self.outbox)
        self.agent.start()
        self.agent.join(identity(f"{number:016x}", backends=("tcp",)))

    async def leave(self, *events: Retained | Evicted) -> None:
        """Leave facts; returns once the ledger has them."""
        for event in events:
            self.outbox.facts(event, event.offer)
        await until(lambda: not self.outbox.counts("facts").waiting, "the facts are stored")


@asynccontextmanager
async def engines(url: str) -> AsyncIterator[tuple[Engine, Engine]]:
    """``d0``, which offers, and ``p0``, which asks."""
    both = (Engine(url, "d0", 1), Engine(url, "p0", 2))
    try:
        for one in both:
            await until(lambda one=one: one.agent.state == "joined", "it joins")  # type: ignore[misc]
        yield both
    finally:
        for one in both:
            await asyncio.to_thread(one.agent.stop)


def finds(coordinator: Coordinator, run: Retained) -> bool:
    """Whether p0 is sent to d0 for this run."""
    request = PlanRequest(
        space=SPACE,
        node="p0",
        hashes=run.hashes,
        stride=1,
        block_size=128,
        prompt_tokens=128 * run.count + 1,
    )
    answer = coordinator.plans.answer(request)
    return [one.node for one in answer.candidates] == ["d0"]


async def purge_before(ledger: JetStreamLedger, seq: int) -> None:
    await ledger._api.call(f"STREAM.PURGE.{FACTS_STREAM}", {"seq": seq})


def withdrawn() -> Evicted:
    return Evicted(offer=WITHDRAWN.offer, rev=2, keep=0, reason="reuse", count=WITHDRAWN.count)


async def test_begun_behind_every_snapshot_nodes_are_asked_for_an_inventory(
    server: EmbeddedServer, ledger: JetStreamLedger, caplog: pytest.LogCaptureFixture
) -> None:
    async with engines(server.url) as (d0, _):
        await d0.leave(KEPT, WITHDRAWN)
        async with running(ledger, silent_after_s=60.0) as first:
            await until(lambda: finds(first, WITHDRAWN), "both are found")
            await until(lambda: first.decider.leads(SPACE), "it leads")
            written = await first.checkpoints.write()
            assert written is not None
        await d0.leave(withdrawn())
        await d0.leave(LATER)
        last = (await ledger.bounds(FACTS_STREAM)).last
        await purge_before(ledger, last + 1)
        async with running(ledger, silent_after_s=60.0) as second:
            assert not finds(second, WITHDRAWN), "what the snapshot says is not believed"
            await until(lambda: finds(second, KEPT) and finds(second, LATER), "the node told anew")
            assert not finds(second, WITHDRAWN)
            assert second.projector.state.spaces[SPACE].nodes["d0"].epoch > 1
    gone = f"messages {written.position + 1} to {last} of the ledger are gone unread"
    assert gone in caplog.text


async def test_what_is_gone_unread_under_a_running_coordinator_makes_every_node_tell_anew(
    server: EmbeddedServer, ledger: JetStreamLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = asyncio.Event()
    mine = await connect(server.url, name="cut off")
    bring_up = mine._link._bring_up

    async def later(timeout_s: float) -> Life:
        await away.wait()
        return await bring_up(timeout_s)

    try:
        async with engines(server.url) as (d0, p0), running(mine, silent_after_s=60.0) as one:
            await d0.leave(KEPT, WITHDRAWN)
            await until(lambda: finds(one, WITHDRAWN), "both are found")
            await until(lambda: one.decider.leads(SPACE), "it leads")
            monkeypatch.setattr(mine._link, "_bring_up", later)
            mine._link.lose(await mine._link.life(1.0), "the test ends it")
            await d0.leave(withdrawn())
            await p0.leave(offer("p0.1", 1))
            last = (await ledger.bounds(FACTS_STREAM)).last
            assert one.projector.state.position < last - 1
            await purge_before(ledger, last)
            away.set()
            nodes = one.projector.state.spaces[SPACE].nodes
            await until(lambda: {n.epoch for n in nodes.values()} == {2}, "all told anew")
            await until(lambda: finds(one, KEPT), "what is still offered is found")
            assert not finds(one, WITHDRAWN)
            assert one.projector.state.dropped["lost"] >= 1
    finally:
        away.set()
        await mine.close()


async def test_a_store_that_was_put_back_is_noticed_though_it_has_grown_since(
    server: EmbeddedServer, ledger: JetStreamLedger
) -> None:
    async with engines(server.url) as (d0, _), running(ledger, silent_after_s=60.0) as one:
        await d0.leave(KEPT, WITHDRAWN)
        await until(lambda: finds(one, WITHDRAWN), "both are found")
        await until(lambda: one.decider.leads(SPACE), "it leads")
        folded = one.projector.state.position
        other = await connect(server.url, name="operator")
        try:
            config = (await other._api.call(f"STREAM.INFO.{FACTS_STREAM}"))["config"]
            # At once, so that nobody sees that the stream is shorter than what was folded.
            await other._api.call(f"STREAM.DELETE.{FACTS_STREAM}")
            await other._api.call(f"STREAM.CREATE.{FACTS_STREAM}", config)
            subject = lane_subject(SPACE, "x9", FACTS)
            await other.append_many([(subject, b"x", f"x{n}") for n in range(folded + 20)])
        finally:
            await other.close()
        ledger._link.lose(await ledger._link.life(1.0), "the test ends it")
        await d0.leave(withdrawn())
        await until(lambda: one.projector.state.quarantined_total, "it read the other stream")
        await until(lambda: finds(one, KEPT), "the node told anew")
        assert one.projector.state.quarantined_total == folded + 20, "from its beginning"
        assert not finds(one, WITHDRAWN)
