"""Looks at every engine's /health, and gives up engines that stay silent."""

from __future__ import annotations

import asyncio
import logging

import httpx

from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.settings import RouterSettings

logger = logging.getLogger("kvferry.router")


class Prober:
    """One task an engine. ``start`` and ``stop`` run on the event loop."""

    def __init__(
        self, settings: RouterSettings, client: httpx.AsyncClient, engines: list[Engine]
    ) -> None:
        self._settings = settings
        self._client = client
        self._engines = engines
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Probes every engine once, so that the first request already knows who is down."""
        async with asyncio.TaskGroup() as first:
            for engine in self._engines:
                first.create_task(self._first(engine))
        self._tasks = [
            asyncio.create_task(self._watch(engine), name=f"probe-{engine.name}")
            for engine in self._engines
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _first(self, engine: Engine) -> None:
        trouble = ""
        for _ in range(self._settings.probe_timeouts_max):
            trouble, timed_out = await self._probe(engine)
            if not timed_out:
                break
        if trouble:
            engine.mark_down(trouble)
        engine.probe_now.clear()

    async def _watch(self, engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        timeouts = 0
        down_since: float | None = None if engine.up else loop.time()
        while True:
            try:
                async with asyncio.timeout(self._settings.probe_every_s):
                    await engine.probe_now.wait()
            except TimeoutError:
                pass
            engine.probe_now.clear()
            trouble, timed_out = await self._probe(engine)
            if not trouble:
                engine.mark_up()
                timeouts, down_since = 0, None
                continue
            timeouts = timeouts + 1 if timed_out else self._settings.probe_timeouts_max
            down_since = loop.time() if down_since is None else down_since
            if timeouts >= self._settings.probe_timeouts_max:
                engine.mark_down(trouble)
                engine.probe_now.clear()
            if loop.time() - down_since >= self._settings.lost_after_s:
                self._give_up(engine)

    def _give_up(self, engine: Engine) -> None:
        ended = engine.give_up()
        if ended:
            logger.warning(
                "%s engine %s gave no sign of life for %.0f s: ended its %d requests in flight",
                engine.pool,
                engine.name,
                self._settings.lost_after_s,
                ended,
            )

    async def _probe(self, engine: Engine) -> tuple[str, bool]:
        """What is wrong, empty if nothing; and whether it was silence."""
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                answer = await self._client.get(f"{engine.url}/health")
        except TimeoutError:
            return f"/health silent for {self._settings.probe_timeout_s:g} s", True
        except httpx.ConnectTimeout:
            return f"/health not reached in {self._settings.connect_timeout_s:g} s", True
        except httpx.TransportError as error:
            return f"/health unreachable ({type(error).__name__})", False
        if answer.status_code != 200:
            return f"/health answered {answer.status_code}", False
        return "", False
