"""What the tests of the node agent share: waiting on conditions, and reading what was stored."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager

from kvferry.core.apply import apply_batch
from kvferry.core.envelope import Batch, Position
from kvferry.core.events import Retained, TurnEnded
from kvferry.core.state import State
from kvferry.ids import short_hashes
from kvferry.ledger.codec import decode
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.agent.settings import Identity, NodeSettings
from kvferry.node.outbox.outbox import Outbox
from kvferry.ports.log import FACTS_STREAM, LogPort

BOUND_S = 30.0
"""Far beyond what any condition takes on a busy machine."""

SPACE = "tiny-0123456789ab"


def settings(url: str, **changes: object) -> NodeSettings:
    """Quick settings for tests; ``changes`` win."""
    quick: dict[str, object] = {
        "node": "p0",
        "connect_timeout_s": 2.0,
        "reconnect_min_s": 0.05,
        "reconnect_max_s": 0.5,
        "heartbeat_s": 0.1,
        "plan_deadline_ms": 20_000.0,
        "replica_silent_s": 600.0,
        "resync_pause_s": 0.2,
    }
    return NodeSettings(nats_url=url, **(quick | changes))  # type: ignore[arg-type]


def identity(incarnation: str = "00000000000000aa", **changes: object) -> Identity:
    """A node of the test space with blocks of 128 tokens, so that each hash is a sample."""
    known: dict[str, object] = {
        "space": SPACE,
        "incarnation": incarnation,
        "address": "127.0.0.1:1",
        "block_size": 128,
    }
    return Identity(**(known | changes))  # type: ignore[arg-type]


def turn(number: int) -> TurnEnded:
    """A fact that is easy to tell from others."""
    return TurnEnded(request=f"r{number}")


def offer(name: str, blocks: int, rev: int = 1) -> Retained:
    """An offer of so many blocks, each with its own hash."""
    hashes = [f"{name}:{block}".encode().ljust(32, b".") for block in range(blocks)]
    return Retained(
        offer=name,
        rev=rev,
        tier="cache",
        count=blocks,
        tail=hashes[-1],
        hashes=short_hashes(hashes, 1),
    )


def wait_until(condition: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
    """Return once the condition holds; fail when it does not within the bound."""
    until = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < until, f"not within {bound_s} s: {what}"
        time.sleep(0.005)


async def until(condition: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
    """:func:`wait_until` for coroutines."""
    end = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < end, f"not within {bound_s} s: {what}"
        await asyncio.sleep(0.005)


async def stored(log: LogPort, stream: str = FACTS_STREAM, node: str = "p0") -> list[Batch]:
    """The node's batches in the order of the stream."""
    found = []
    async with aclosing(log.read(stream)) as messages:  # type: ignore[type-var]
        async for message in messages:
            batch = decode(message.data)
            if batch.node == node:
                found.append(batch)
    return found


async def folded(log: LogPort) -> State:
    """The state that the facts stream folds to."""
    state = State()
    async with aclosing(log.read(FACTS_STREAM)) as messages:  # type: ignore[type-var]
        async for message in messages:
            position = Position(message.seq, message.stored_ms)
            apply_batch(state, decode(message.data), position)
    return state


def assert_contiguous(batches: list[Batch]) -> None:
    """Every record of every lane counts 1, 2, 3 ... in stream order."""
    expected: dict[tuple[str, int, str], int] = {}
    for batch in batches:
        key = (batch.incarnation, batch.epoch, batch.lane)
        assert batch.seq == expected.get(key, 1), f"{key} goes on at {batch.seq}"
        expected[key] = batch.seq + len(batch.entries)


def turns(batches: list[Batch]) -> list[str]:
    """The requests of all stored turns, in order."""
    return [
        entry.event.request
        for batch in batches
        for entry in batch.entries
        if isinstance(entry.event, TurnEnded)
    ]


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def ledger(url: str, *, streams: bool = True) -> AsyncIterator[JetStreamLedger]:
    """A connection of the test's own; makes the streams."""
    connection = await connect(url, name="test", timeout_s=BOUND_S)
    try:
        if streams:
            await connection.ensure_streams(
                facts_max_bytes=64 << 20, blocks_max_bytes=64 << 20, objects_max_bytes=8 << 20
            )
        yield connection
    finally:
        await connection.close()


@contextlib.contextmanager
def running(agent_settings: NodeSettings, outbox: Outbox) -> Iterator[NodeAgent]:
    """A started agent that is stopped at the end whatever happens."""
    agent = NodeAgent(agent_settings, outbox)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop(BOUND_S)
