"""A router process: its port, its stop, and what a stop does to requests in flight."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.unit.router.support import BOUND_S, FakeEngine, engine_server, events, start, until

from kvferry.errors import ConfigError
from kvferry_connectors.router.serve import listen

SCRIPT = """
import sys
from kvferry_connectors.router.serve import run
from kvferry_connectors.router.settings import RouterSettings, parse_engines
p, d, drain_s = sys.argv[1:]
settings = RouterSettings(
    prefill=parse_engines([p], "p"), decode=parse_engines([d], "d"), drain_s=float(drain_s)
)
run(settings, port=0, ready=lambda url: print(url, flush=True))
"""


class Process:
    def __init__(self, process: asyncio.subprocess.Process, url: str, engine: FakeEngine) -> None:
        self.process = process
        self.url = url
        self.engine = engine

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), BOUND_S)


@asynccontextmanager
async def router_process(drain_s: float) -> AsyncIterator[Process]:
    """A router in a process of its own, in front of one fake engine in both roles."""
    engine = FakeEngine("d0")
    served = await start(engine_server(engine.app()))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, served.url, served.url, str(drain_s)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), BOUND_S)).decode().strip()
        assert url.startswith("http://127.0.0.1:")
        yield Process(process, url, engine)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await served.stop()


async def ask(url: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=BOUND_S, trust_env=False) as client:
        body = {"prompt": "hello", "stream": True}
        return await client.post(f"{url}/v1/completions", json=body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_lets_a_running_stream_finish(number: signal.Signals) -> None:
    async with router_process(drain_s=10) as router:
        router.engine.gates = {1: asyncio.Event()}
        asking = asyncio.create_task(ask(router.url))
        await until(lambda: len(router.engine.got) == 2)
        router.process.send_signal(number)
        await until(lambda: refuses(router.url))
        router.engine.gates[1].set()
        answer = await asking
        assert events(answer.content)[-1] == "[DONE]"
        assert await router.ended() == 0


async def test_a_stop_does_not_wait_for_ever() -> None:
    async with router_process(drain_s=0.5) as router:
        router.engine.gates = {1: asyncio.Event()}
        asking = asyncio.create_task(ask(router.url))
        await until(lambda: len(router.engine.got) == 2)
        router.process.terminate()
        assert await router.ended() == 0
        await asyncio.wait_for(router.engine.left.wait(), BOUND_S)
        with pytest.raises(httpx.TransportError):
            await asking


async def refuses(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionError:
        return True
    writer.close()
    return False


def test_a_taken_port_is_named() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            listen("127.0.0.1", port)
