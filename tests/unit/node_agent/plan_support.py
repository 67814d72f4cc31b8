"""A plan client on a bus in memory, and replicas that answer on it or do not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
from kvferry.ports.log import Reply

REQUEST = PlanRequest(
    space=SPACE, node="p0", hashes=b"", stride=1, block_size=16, prompt_tokens=100
)


ASKS_MAX = 200


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


async def sent(plans: PlanClient, asked: list[str]) -> Ask:
    """An ask that a replica heard; on a busy machine some are over before they are sent."""
    for _ in range(ASKS_MAX):
        ask = Ask()
        plans.ask(REQUEST, ask.done)
        await until(lambda ask=ask: asked or ask.ended.is_set(), "it is heard, or over")  # type: ignore[misc]
        if asked:
            return ask
    raise AssertionError("no ask was heard")


async def freeze(bus: MemoryLog, replica: str, counter: list[str]) -> None:
    async def handle(subject: str, data: bytes, reply: Reply | None) -> None:
        counter.append(replica)

    await bus.subscribe(plan_subject(replica), handle)
