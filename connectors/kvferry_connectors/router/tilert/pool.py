"""The pool: its nodes, its queue, and what has to be brought to an end behind a turn's back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass

import httpx

from kvferry.errors import SlotError
from kvferry.node.slots import CANCELLED, REFUSED, Slot, Slots
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.tilert.call import DecodeCall, Ended
from kvferry_connectors.router.tilert.model import Model
from kvferry_connectors.router.tilert.node import Node, busy_with
from kvferry_connectors.router.tilert.settings import TilertSettings
from kvferry_connectors.router.tilert.settle import settle
from kvferry_connectors.router.tilert.waiting import SlotQueue, View

logger = logging.getLogger("kvferry.router")


class TilertPool:
    """One router's TileRT nodes. Used from its event loop only.

    Attributes:
        nodes: by name.
        queue: who waits for a slot.
        model: what they decode.
        settings: its bounds.
        client: for requests to nodes.
    """

    def __init__(
        self, settings: TilertSettings, model: Model, client: httpx.AsyncClient, slots: Slots
    ) -> None:
        self.settings = settings
        self.model = model
        self.client = client
        self.nodes = {one.name: Node(one) for one in settings.nodes}
        self.queue = SlotQueue(slots, settings.waiting_max, settings.wait_max_s)
        self._slots = slots
        self._open: set[asyncio.Task[None]] = set()

    @property
    def engines(self) -> list[Engine]:
        """The nodes as the router's prober and its metrics take them."""
        return [node.engine for node in self.nodes.values()]

    async def start(self) -> None:
        """Names the nodes to the coordinator; if nobody hears it now it is said again later."""
        try:
            await self._slots.register(self.settings.nodes)
        except SlotError as error:
            logger.warning("TileRT nodes are not registered yet: %s", error)

    async def close(self) -> None:
        """Brings what is open at nodes to an end, within ``close_within_s``."""
        if self._open:
            await asyncio.wait(self._open, timeout=self.settings.close_within_s)
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def view(self, failures: dict[str, str]) -> View:
        """The nodes as a turn may use them that failed on some, each with its reason."""
        return _View(self, failures)

    async def idle(self, node: Node, failures: dict[str, str]) -> bool:
        """Whether a leased node says that it is idle, as it has to; a silent one failed.

        One in other hands is passed over for a while: what it holds may be overwritten, by us or
        by them, and no lease of ours can prevent that.
        """
        try:
            rid = await busy_with(self.client, node, self.settings.status_within_s)
        except (httpx.TransportError, TimeoutError, ValueError) as error:
            node.engine.suspect()
            failures[node.name] = f"does not say whether it is idle ({type(error).__name__})"
            return False
        if rid is None:
            return True
        node.foreign(rid, self.settings.foreign_pause_s)
        logger.warning(
            "TileRT node %s decodes %s that no lease of ours covers: let every router that uses "
            "it take its leases from the same coordinator; it is passed over for %g s",
            node.name,
            rid or "a request",
            self.settings.foreign_pause_s,
        )
        return False

    async def confirm(self, slot: Slot) -> None:
        """See :meth:`kvferry.node.slots.Slots.confirm`."""
        await self._slots.confirm(slot)

    def decode(self, node: Node, slot: Slot, rid: str, content: bytes) -> DecodeCall:
        """Begins ``/pd/decode``. It runs to its end, and ends the lease, whatever the turn does."""
        call = DecodeCall(self.client, self.settings, node, slot, rid, content)
        self._spawn(self._carry_out(call, slot), slot)
        return call

    def settle(self, node: Node, slot: Slot, rid: str) -> asyncio.Task[None]:
        """Ends what prefill may have begun, and then the lease."""
        return self._spawn(self._settle(node, slot, rid), slot)

    def untouched(self, slot: Slot, why: str) -> asyncio.Task[None]:
        """Ends a lease of which the node never heard."""
        return self._spawn(self._end(slot, Ended(REFUSED, why)), slot)

    async def _carry_out(self, call: DecodeCall, slot: Slot) -> None:
        ended = Ended("", "the call failed in the router")
        try:
            ended = await call.run()
        finally:
            await self._end(slot, ended)

    async def _settle(self, node: Node, slot: Slot, rid: str) -> None:
        doubt = "the router stopped before the node confirmed"
        try:
            doubt = await settle(self.client, node, rid, self.settings.settle_within_s)
        finally:
            await self._end(slot, Ended("" if doubt else CANCELLED, doubt))

    async def _end(self, slot: Slot, ended: Ended) -> None:
        if ended.how:
            await self._slots.end(slot, ended.how, ended.why)
            return
        logger.warning(
            "TileRT node %s is in doubt after %s (%s): it is lent again once it was idle for %g s",
            slot.node.name,
            slot.request,
            ended.why,
            slot.node.idle_limit_ms / 1000,
        )
        await self._slots.abandon(slot, ended.why)

    def _spawn(self, work: Coroutine[None, None, None], slot: Slot) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"tilert-{slot.request}")
        self._open.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        with suppress(asyncio.CancelledError):
            error = task.exception()
            if error is not None:
                logger.error("ending the lease of %s failed: %r", task.get_name(), error)


@dataclass(frozen=True)
class _View:
    pool: TilertPool
    failures: dict[str, str]

    def candidates(self) -> list[str]:
        usable = [n for n in self._left() if n.usable()]
        return [n.name for n in sorted(usable, key=lambda n: (n.engine.in_flight, n.engine.served))]

    def any_up(self) -> bool:
        return any(n.engine.up for n in self._left())

    def states(self) -> str:
        return ", ".join(
            f"{n.name}: {self.failures.get(n.name) or n.trouble()}"
            for n in self.pool.nodes.values()
        )

    def _left(self) -> list[Node]:
        return [n for n in self.pool.nodes.values() if n.name not in self.failures]
