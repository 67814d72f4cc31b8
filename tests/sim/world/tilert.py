"""TileRT decode nodes as they are without us: one buffer, no fencing, whoever comes last is in it.

And routers that use them through the shipped client. A prompt that prefill has taken goes its way
whatever becomes of its router, as it does in a real fleet.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tests.sim.checks import slots as slots_check
from tests.sim.kernel.kernel import Process

from kvferry.core.slots import SlotNode
from kvferry.errors import SlotError, SlotLost, SlotsBusy, SlotsUnavailable
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.slots.client import SlotClient
from kvferry.node.slots.slot import Slot
from kvferry.node.slots.timing import SlotTiming

if TYPE_CHECKING:
    from tests.sim.world.world import World

IDLE_LIMIT_MS = 4_000
"""The node's own limit; a holder may act for 0.5 s after a sign, prefill write for 3 s."""

PREFILL_S = (*(0.01, 0.1) * 4, 0.9, 2.5, 5.0)
"""The last one is longer than prefill may take."""


class Tile:
    """One decode node."""

    def __init__(self, name: str) -> None:
        self.node = SlotNode(
            name=name,
            http=f"http://{name}",
            control=f"{name}:1",
            idle_limit_ms=IDLE_LIMIT_MS,
        )
        self.buffer = ""
        self.decoding = 0


class Tiles:
    """All of them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.by_name = {name: Tile(name) for name in names}

    async def status(self, http: str, timeout_s: float) -> str:
        """In place of ``decode_status``."""
        await asyncio.sleep(0.002)
        tile = self.by_name[http.removeprefix("http://")]
        return "busy" if tile.decoding else "idle"


class Router:
    """One process life of a router: a request after the other, some of which are slow."""

    def __init__(self, world: World, name: str, life: int) -> None:
        self.name, self.life, self._world = name, life, world
        self.done = False
        self.process = Process(world.kernel, name)
        self._rng = random.Random(f"{world.kernel.seed}/{name}/{life}")
        self.process.rng.seed(f"{world.kernel.seed}/{name}/{life}")
        world.kernel.spawn(self.process, f"{name}:main", self._main)

    def _main(self) -> None:
        asyncio.new_event_loop().run_until_complete(self._live())
        self.done = True

    async def _live(self) -> None:
        world = self._world
        client = SlotClient(
            NodeSettings(nats_url="nats://sim", node=self.name),
            f"life{self.life}",
            timing=SlotTiming(ask_within_s=1.0, try_s=0.2, end_within_s=1.0),
            connect=world.connect,
        )
        await client.start()
        nodes = [tile.node for tile in world.tiles.by_name.values()]
        number = 0
        registered = False
        while world.kernel.now_s < world.knobs.busy_s:
            number += 1
            try:
                if not registered:
                    await client.register(nodes)
                    registered = True
                await self._serve(client, f"{self.name}.{self.life}.{number}")
            except SlotsBusy as busy:
                await client.freed(busy.retry_after_s)
            except SlotError:
                await asyncio.sleep(0.1)
        await client.close()

    async def _serve(self, client: SlotClient, request: str) -> None:
        rng, world = self._rng, self._world
        names = list(world.tiles.by_name)
        rng.shuffle(names)
        slot = await client.acquire(names, request)
        tile = world.tiles.by_name[slot.node.name]
        if not slot.sure():
            await client.end(slot, "refused_before_admission")
            return
        prefill = Prefill(world, tile, request, rng.choice(PREFILL_S), slot)
        if not await prefill.ended():
            await client.abandon(slot, "prefill sent nothing in its time")
            return
        try:
            await client.confirm(slot)
        except SlotLost:
            return
        except SlotsUnavailable:
            world.kernel.note("slots", request, "not confirmed")
        if not slot.sure():
            await client.abandon(slot, "no sign of the coordinator")
            return
        tile.decoding += 1
        await asyncio.sleep(rng.choice((0.001, 0.05, 0.4)))
        read = tile.buffer
        tile.decoding -= 1
        if slot.sure():
            slots_check.answered(world, request, read)
        await client.end(slot, "replied")


class Prefill:
    """Writes a prompt's KV into a node after a while, unless its time is over."""

    def __init__(self, world: World, tile: Tile, request: str, after_s: float, slot: Slot) -> None:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[bool] = self._loop.create_future()
        self._process = world.kernel.current_thread().process
        in_time = after_s < slot.send_within_s

        def write() -> None:
            if in_time:
                tile.buffer = request
            if self._process.alive and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._settle, in_time)

        world.kernel.after(after_s, write)

    def _settle(self, wrote: bool) -> None:
        if not self._over.done():
            self._over.set_result(wrote)

    async def ended(self) -> bool:
        """Whether it wrote."""
        return await self._over
