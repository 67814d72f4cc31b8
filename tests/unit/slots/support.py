"""A coordinator, routers and decode nodes for tests of slot leases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.unit.daemon.support import BOUND_S, until

from kvferry.core.events import SlotChanged
from kvferry.core.slots import SlotNode
from kvferry.core.slots_state import Slots, SlotState
from kvferry.daemon.coordinator import Coordinator
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.codec import decode
from kvferry.ledger.subjects import coord_subject
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.slots import SlotClient, SlotTiming
from kvferry.ports.log import FACTS_STREAM, Handler

CLOSE_S = 0.3
LIMIT_MS = 1_600
"""A node's idle limit in tests: a holder may act for 0.2 s after its last acknowledged sign."""


def node(name: str = "t0", http: str = "", **more: Any) -> SlotNode:
    http = http or f"http://127.0.0.1:9/{name}"
    return SlotNode(name=name, http=http, control=f"127.0.0.1:{name}", **more)


class DecodeServer:
    """Answers ``GET /decode_status`` as TileRT's decode server does. Stands in for its HTTP side,
    which needs no more than a lock to know whether it is busy."""

    def __init__(self) -> None:
        self.status = "idle"
        self.asked = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[DecodeServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        assert request.startswith(b"GET /decode_status HTTP/1.1\r\n")
        self.asked += 1
        body = json.dumps({"status": self.status, "current_rid": None}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()


class Link:
    """A client's connection to a ledger in memory that others use too; it can be cut or moved."""

    def __init__(self, log: Any) -> None:
        self.cut = False
        self._log = log
        self._heard: list[tuple[str, Handler]] = []
        self._stops: list[Callable[[], Awaitable[None]]] = []

    async def use(self, log: Any) -> None:
        """From now on it leads to another ledger."""
        await self.close()
        self._log = log
        heard, self._heard = self._heard, []
        for subject, handler in heard:
            await self.subscribe(subject, handler)

    def connected(self) -> bool:
        return not self.cut

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        answer: bytes = await self._log.request(subject, data, timeout_s)
        return answer

    async def subscribe(self, subject: str, handler: Handler) -> Callable[[], Awaitable[None]]:
        self._heard.append((subject, handler))
        stop: Callable[[], Awaitable[None]] = await self._log.subscribe(subject, handler)
        self._stops.append(stop)
        return stop

    async def close(self) -> None:
        stops, self._stops = self._stops, []
        for stop in stops:
            await stop()


@asynccontextmanager
async def client_of(
    log: Any, name: str = "r0", **timing: float
) -> AsyncIterator[tuple[SlotClient, Link]]:
    """A router's client, which need not hear anybody."""
    link = Link(log)

    async def connect(settings: NodeSettings) -> Any:
        return link

    client = SlotClient(
        NodeSettings(nats_url="nats://memory", node=name),
        "a",
        timing=SlotTiming(**{"ask_within_s": BOUND_S, "end_within_s": BOUND_S, **timing}),
        connect=connect,
    )
    await client.start()
    try:
        yield client, link
    finally:
        # Whoever could hear how leases end has often gone by now.
        client.timing = msgspec.structs.replace(client.timing, end_within_s=CLOSE_S)
        await client.close()


@asynccontextmanager
async def router(log: Any, name: str = "r0", **timing: float) -> AsyncIterator[SlotClient]:
    """A router's client that hears the leader."""
    async with client_of(log, name, **timing) as (client, _):
        await until(client.available, "a leader is heard")
        yield client


def link_of(client: SlotClient) -> Link:
    """The connection of a client of :func:`router`."""
    link = client._connection._ledger
    assert isinstance(link, Link)
    return link


def slots_of(coordinator: Coordinator) -> Slots:
    space = coordinator.projector.state.spaces.get(ROUTER_SPACE)
    return space.slots if space is not None else Slots()


def slot_of(coordinator: Coordinator, name: str = "t0") -> SlotState:
    return slots_of(coordinator).nodes[name]


async def changes(log: Any) -> list[SlotChanged]:
    """All changes of slots in the ledger, in order; void ones of deposed leaders too."""
    found: list[SlotChanged] = []
    async for stored in log.read(FACTS_STREAM, subject=coord_subject(ROUTER_SPACE)):
        found += [
            entry.event
            for entry in decode(stored.data).entries
            if isinstance(entry.event, SlotChanged)
        ]
    return found


async def told(log: Any) -> list[tuple[str, int]]:
    """(change, fence) of each."""
    return [(one.change, one.fence) for one in await changes(log)]
