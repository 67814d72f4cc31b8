"""Everything that the demo starts: ledger, coordinator, engines, router, and its own clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import httpx

from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry_connectors.demo.client import Client
from kvferry_connectors.demo.engines import Engine, child_environment
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.folder import RunFolder
from kvferry_connectors.demo.ports import HeldPort
from kvferry_connectors.demo.process import Child
from kvferry_connectors.demo.records import Records
from kvferry_connectors.demo.screen import Screen
from kvferry_connectors.demo.settings import DECODES, HOST, PREFILL, DemoSettings
from kvferry_connectors.demo.together import all_of, together

UP_S = 60.0
HEALTH_EVERY_S = 0.1
NUMBERS = ("no", "one", "two", "three")
S = TypeVar("S", bound="Stack")
COMMAND_S = 60.0
KVFERRY = (sys.executable, "-m", "kvferry.cli")


class Stack:
    """A running installation. Made by :func:`running`."""

    def __init__(self, settings: DemoSettings, run: RunFolder, model: Path, screen: Screen) -> None:
        self.settings = settings
        self.run = run
        self.model = model
        self.screen = screen
        self.nats_url = ""
        self.replica = ""
        self.engines = self.make_engines()
        self.router_port = HeldPort()
        self.router_url = f"http://{HOST}:{self.router_port.number}"
        self.http: httpx.AsyncClient
        self.ledger: JetStreamLedger
        self.records: Records
        self.router: Client
        self.others: Client
        """Where the requests go that fill P's cache."""

    def make_engines(self) -> dict[str, Engine]:
        """The engines by name, not started."""
        settings = self.settings
        return {
            PREFILL: self._engine(PREFILL, "prefill", settings.prefill_pool),
            **{name: self._engine(name, "decode", settings.decode_pool) for name in DECODES},
        }

    def up_options(self) -> list[str]:
        """What the ledger and the coordinator are started with."""
        return []

    def router_options(self) -> list[str]:
        """What the router is started with."""
        engines = [f"--prefill={PREFILL}={self.engines[PREFILL].url}"]
        decodes = [name for name in self.engines if name != PREFILL]
        return engines + [f"--decode={name}={self.engines[name].url}" for name in decodes]

    async def start(self, cleanup: AsyncExitStack) -> None:
        """All of it, in order; ``cleanup`` ends it in the opposite order."""
        screen = self.screen
        with screen.doing("starting the ledger and the coordinator"):
            await self.start_ledger(cleanup)
        screen.say(f"ledger and coordinator serve at {self.nats_url}")
        count = NUMBERS[len(self.engines)]
        with screen.doing(f"starting {count} vLLM engines on the CPU (about a minute)"):
            await self.start_engines(cleanup)
        with screen.doing("starting the router"):
            await self.start_router(cleanup)
        self.router = Client(self.http, self.router_url)
        self.others = Client(self.http, self.engines[PREFILL].url)

    async def command(self, *args: str, fine: Collection[int] = (0,)) -> str:
        """What a ``kvferry`` command prints, in a process of its own.

        Raises:
            DemoError: it fails: its exit code is none of those in ``fine``.
        """
        name = f"kvferry {args[0]}"
        child = Child(
            name,
            [*KVFERRY, *args],
            env=child_environment(self.run) | {"KVFERRY_NATS": self.nats_url},
            log=self.run.log(f"kvferry-{args[0]}"),
            talk=True,
        )
        try:
            await child.start()
            async with asyncio.timeout(COMMAND_S):
                output, _ = await child.process.communicate()
        except TimeoutError:
            raise DemoError(f"{name} did not end within {COMMAND_S:.0f} s", child.log) from None
        finally:
            await asyncio.shield(child.kill())
        if child.process.returncode not in fine:
            raise DemoError(f"{name} failed:\n{child.tail()}", child.log)
        return output.decode()

    async def start_ledger(self, cleanup: AsyncExitStack) -> None:
        """``kvferry up`` on a free port, and our own connection to it."""
        up = Child(
            "kvferry up",
            [
                *(*KVFERRY, "up", "--json", "--port", "0"),
                *("--store", str(self.run.path / "ledger"), *self.up_options()),
            ],
            env=child_environment(self.run),
            log=self.run.log("up"),
            talk=True,
        )
        cleanup.push_async_callback(up.stop, self.settings.stop_s)
        await up.start()
        assert up.process.stdout is not None
        try:
            async with asyncio.timeout(UP_S):
                line = await up.process.stdout.readline()
        except TimeoutError:
            raise DemoError(f"kvferry up says nothing:\n{up.tail()}", up.log) from None
        if not line:
            raise DemoError(f"kvferry up ended:\n{up.tail()}", up.log)
        said = json.loads(line)
        self.nats_url, self.replica = said["url"], said["replica"]
        self.ledger = await connect(self.nats_url, name="demo")
        cleanup.push_async_callback(self.ledger.close)
        self.records = await cleanup.enter_async_context(Records(self.ledger))

    async def start_engines(self, cleanup: AsyncExitStack) -> None:
        """All engines at once; returns when they answer and are in the ledger."""
        cleanup.push_async_callback(self._stop_engines)
        for engine in self.engines.values():
            await engine.start(self.nats_url)
        await together(*(self.wait_joined(engine, "") for engine in self.engines.values()))

    async def wait_joined(self, engine: Engine, before: str) -> None:
        """Wait until an engine answers and its process life, other than ``before``, is known."""

        def joined() -> str | None:
            now = self.records.incarnation(engine.name)
            return now if now != before else None

        await engine.wait_healthy(self.http)
        await self.records.until(joined, self.settings.ledger_s, f"{engine.name} joining")
        self.screen.say(f"{engine.name} serves at {engine.url}")

    async def start_router(self, cleanup: AsyncExitStack) -> None:
        """``kvferry router`` in front of the engines."""
        port = str(self.router_port.number)
        router = Child(
            "kvferry router",
            [
                *(*KVFERRY, "router", *self.router_options()),
                *("--port", port, "--nats", self.nats_url),
            ],
            env=child_environment(self.run),
            log=self.run.log("router"),
        )
        cleanup.push_async_callback(router.stop, self.settings.stop_s)
        await router.start()
        await self.wait_routed(router)
        self.screen.say(f"router serves at {self.router_url}")

    async def wait_routed(self, router: Child | None = None) -> None:
        """Wait until the router says that every engine is up.

        Raises:
            DemoError: it ended, or still says otherwise after a while.
        """
        said = "nothing"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UP_S):
                while True:
                    if router is not None:
                        router.check()
                    with contextlib.suppress(httpx.TransportError):
                        answer = await self.http.get(f"{self.router_url}/health")
                        said = answer.text
                        if answer.status_code == 200 and answer.json()["status"] == "ok":
                            return
                    await asyncio.sleep(HEALTH_EVERY_S)
        raise DemoError(f"the router does not see every engine up; it says {said[:300]}")

    def _engine(self, name: str, role: str, pool: int) -> Engine:
        return Engine(name, role, pool, settings=self.settings, model=self.model, run=self.run)

    async def _stop_engines(self) -> None:
        await all_of(*(engine.stop() for engine in self.engines.values()))


@asynccontextmanager
async def running(stack: S) -> AsyncIterator[S]:
    """The whole installation; nothing of it is left afterwards, whatever happened."""
    cleanup = AsyncExitStack()
    for port in (stack.router_port, *(engine.port for engine in stack.engines.values())):
        cleanup.callback(port.close)
    try:
        limits = httpx.Timeout(stack.settings.answer_s, connect=5.0)
        stack.http = await cleanup.enter_async_context(
            httpx.AsyncClient(timeout=limits, trust_env=False)
        )
        await stack.start(cleanup)
        yield stack
    finally:
        with stack.screen.doing("stopping everything"):
            await asyncio.shield(cleanup.aclose())
