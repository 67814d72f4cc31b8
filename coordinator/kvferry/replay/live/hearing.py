"""Who makes itself heard on the bus: coordinators and nodes. Nothing of it is in the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import msgspec

from kvferry.core.messages import ANNOUNCE_SUBJECT, HEARTBEATS, Announce, Heartbeat
from kvferry.ports.log import BusPort, Reply

SILENT_MAX_S = 30.0
"""A coordinator that was silent for so long is not shown any more."""
NODES_MAX = 4_096


class Hearing:
    """Listens from :meth:`start` to :meth:`stop`; what was heard survives reconnects."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._replicas: dict[str, tuple[Announce, float]] = {}
        self._nodes: dict[tuple[str, str], float] = {}
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self._led = asyncio.Event()

    async def start(self, bus: BusPort) -> None:
        """
        Raises:
            LedgerUnavailable: no connection.
        """
        self._stops.append(await bus.subscribe(ANNOUNCE_SUBJECT, self._on_announce))
        self._stops.append(await bus.subscribe(HEARTBEATS, self._on_heartbeat))

    async def stop(self) -> None:
        while self._stops:
            await self._stops.pop()()

    async def led(self, wait_s: float) -> None:
        """Until a leader was heard, ``wait_s`` at the longest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._led.wait()

    def replicas(self) -> list[tuple[Announce, float]]:
        """Coordinators and for how many seconds each is silent, the leader first."""
        now = self._clock()
        self._replicas = {
            name: one for name, one in self._replicas.items() if now - one[1] <= SILENT_MAX_S
        }
        found = [(announce, now - at) for announce, at in self._replicas.values()]
        return sorted(found, key=lambda one: (not one[0].leader, one[0].replica))

    def nodes(self) -> dict[tuple[str, str], float]:
        """For how many seconds each (space, node) is silent; only those that were heard."""
        now = self._clock()
        return {key: now - at for key, at in self._nodes.items()}

    async def _on_announce(self, subject: str, data: bytes, reply: Reply | None) -> None:
        # Somebody else's bytes on our subject are not an announcement.
        with contextlib.suppress(msgspec.MsgspecError):
            announce = msgspec.msgpack.decode(data, type=Announce)
            self._replicas[announce.replica] = (announce, self._clock())
            if announce.leader:
                self._led.set()

    async def _on_heartbeat(self, subject: str, data: bytes, reply: Reply | None) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            beat = msgspec.msgpack.decode(data, type=Heartbeat)
            key = (beat.space, beat.node)
            self._nodes.pop(key, None)
            self._nodes[key] = self._clock()
            if len(self._nodes) > NODES_MAX:
                del self._nodes[next(iter(self._nodes))]
