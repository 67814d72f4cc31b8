"""Engines that are real HTTP servers with made-up answers, and a router in front of them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from kvferry_connectors.router.app import create_app
from kvferry_connectors.router.context import Router
from kvferry_connectors.router.serve import RouterServer, listen
from kvferry_connectors.router.settings import EngineUrl, RouterSettings

BOUND_S = 60.0
"""How long a condition may take on a busy machine before a test fails."""
LIFE_S = 300.0
"""No server of a test lives longer."""


@dataclass
class Got:
    """A request that an engine received."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def kv(self) -> dict[str, Any]:
        return self.body["kv_transfer_params"]["kvferry"]


@dataclass
class FakeEngine:
    """Stands in for vLLM. Its answers name the engine and the request's number."""

    name: str
    got: list[Got] = field(default_factory=list)
    healthy: bool = True
    status: int = 200
    """Answers every request with this status and an error, if it is not 200."""
    chunks: int = 3
    gates: dict[int, asyncio.Event] = field(default_factory=dict)
    """Chunk ``i`` of a stream waits for gate ``i``; gate -1 is before the whole answer."""
    break_at: int = -1
    """The stream breaks off before this chunk."""
    end_early: bool = False
    with_params: bool = True
    """Whether streams carry kv_transfer_params, which vLLM 0.32 leaves out."""
    report: dict[str, Any] = field(default_factory=dict)
    expires_ms: int = 0
    """When its hints end; 0 leaves that out."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request was cancelled from outside."""
    at_work: asyncio.Event = field(default_factory=asyncio.Event)
    frozen: asyncio.Event | None = None
    """While set, nothing is answered until it is set, health included."""

    def app(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route("/v1/completions", self._generate, methods=["POST"]),
                Route("/v1/chat/completions", self._generate, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
            ]
        )

    def hint(self, number: int) -> dict[str, Any]:
        ends = {"expires_ms": self.expires_ms} if self.expires_ms else {}
        return {"secret": f"{self.name}#{number}", **ends}

    async def _health(self, request: Request) -> Response:
        if self.frozen is not None:
            await self.frozen.wait()
        return Response(status_code=200 if self.healthy else 503)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "m", "owned_by": self.name}]})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.got.append(Got(request.url.path, body, dict(request.headers)))
        number = len(self.got)
        self.at_work.set()
        if self.frozen is not None:
            await self.frozen.wait()
        if self.status != 200:
            return JSONResponse({"error": {"message": f"{self.name} says no"}}, self.status)
        if body.get("stream"):
            return StreamingResponse(self._stream(body, number), media_type="text/event-stream")
        if -1 in self.gates:
            await self._gate_or_leave(request)
        return JSONResponse(self._whole(body, number))

    async def _gate_or_leave(self, request: Request) -> None:
        async def disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                continue

        leaving = asyncio.create_task(disconnected())
        opened = asyncio.create_task(self.gates[-1].wait())
        await asyncio.wait({leaving, opened}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.left.set()
        for task in (leaving, opened):
            task.cancel()
        await asyncio.gather(leaving, opened, return_exceptions=True)

    def _params(self, number: int) -> dict[str, Any]:
        report = {"request": f"{self.name}-r{number}", "node": self.name, **self.report}
        return {"kvferry": {"hint": self.hint(number), "report": report}}

    def _whole(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "id": f"x-{number}",
            "choices": [{"index": 0, "text": f"answer of {self.name}", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
            "kv_transfer_params": self._params(number),
        }
        if body.get("return_token_ids"):
            answer["prompt_token_ids"] = [1, 2, 3]
        return answer

    async def _stream(self, body: dict[str, Any], number: int) -> AsyncIterator[bytes]:
        try:
            for index in range(self.chunks):
                if index in self.gates:
                    await self.gates[index].wait()
                if index == self.break_at:
                    raise ConnectionError("made to break")
                last = index == self.chunks - 1
                event: dict[str, Any] = {
                    "choices": [
                        {"index": 0, "text": f"t{index}", "finish_reason": "stop" if last else None}
                    ]
                }
                if last and self.with_params:
                    event["kv_transfer_params"] = self._params(number)
                yield f"data: {json.dumps(event)}\n\n".encode()
            if not self.end_early:
                yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left.set()
            raise


class Served:
    """A running server."""

    def __init__(self, server: RouterServer, task: asyncio.Task[None], url: str) -> None:
        self.server = server
        self.url = url
        self._task = task

    async def stop(self) -> None:
        """As a killed process: connections are reset and the port is closed."""
        self.server.should_exit = True
        await asyncio.wait_for(asyncio.shield(self._task), BOUND_S)


async def start(server: RouterServer, port: int = 0) -> Served:
    listener = listen("127.0.0.1", port)
    task = asyncio.create_task(server.serve([listener]))
    await asyncio.wait_for(server.answering.wait(), BOUND_S)
    return Served(server, task, f"http://127.0.0.1:{listener.getsockname()[1]}")


class QuickServer(RouterServer):
    """Ends at once when told to, where uvicorn takes its time; otherwise the same server."""

    async def main_loop(self) -> None:
        await until(lambda: self.should_exit, bound_s=LIFE_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.lifespan.shutdown()


def engine_server(app: ASGIApp) -> RouterServer:
    config = uvicorn.Config(app, log_config=None, log_level="critical", timeout_graceful_shutdown=1)
    return QuickServer(config)


@dataclass
class House:
    """A router with its engines and a client of it."""

    client: httpx.AsyncClient
    router: Router
    url: str
    engines: dict[str, FakeEngine]
    served: dict[str, Served]

    def __getitem__(self, name: str) -> FakeEngine:
        return self.engines[name]

    async def kill(self, name: str) -> None:
        await self.served[name].stop()

    async def revive(self, name: str) -> None:
        """On the same port."""
        port = int(self.served[name].url.rsplit(":", 1)[1])
        self.served[name] = await start(engine_server(self.engines[name].app()), port)

    async def ask(self, prompt: str = "hello", **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        body = {"model": "m", "prompt": prompt, "max_tokens": 5, **more}
        return await self.client.post("/v1/completions", json=body, headers=headers)

    async def chat(self, *texts: str, **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        body = {"model": "m", "messages": messages, **more}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)


@asynccontextmanager
async def house(
    prefill: int = 1, decode: int = 1, *, dead: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[House]:
    """A router in front of engines p0.. and d0..; ``dead`` ones are down from the start."""
    names = [f"p{i}" for i in range(prefill)] + [f"d{i}" for i in range(decode)]
    async with AsyncExitStack() as stack:
        engines = {name: FakeEngine(name) for name in names}
        started = (start(engine_server(engines[name].app())) for name in names)
        served = dict(zip(names, await asyncio.gather(*started), strict=True))

        async def stop_engines() -> None:
            await asyncio.gather(*(one.stop() for one in [*served.values(), *routers]))

        routers: list[Served] = []
        stack.push_async_callback(stop_engines)
        for name in dead:
            await served[name].stop()
        where = {name: EngineUrl(name, served[name].url) for name in names}
        # A machine that stands still for a while must not look like an engine that is down.
        patient = {"connect_timeout_s": BOUND_S, "probe_timeout_s": BOUND_S}
        options = {**patient, "probe_every_s": 0.2, "drain_s": 1.0, **settings}
        app = create_app(
            RouterSettings(
                prefill=tuple(where[f"p{i}"] for i in range(prefill)),
                decode=tuple(where[f"d{i}"] for i in range(decode)),
                **options,
            )
        )
        router = await start(engine_server(app))
        routers.append(router)
        client = httpx.AsyncClient(base_url=router.url, timeout=BOUND_S, trust_env=False)
        await stack.enter_async_context(client)
        yield House(client, app.state.router, router.url, engines, served)


async def until(condition: Callable[[], bool | Awaitable[bool]], bound_s: float = BOUND_S) -> None:
    """Waits for a condition, and fails if it does not hold in time."""
    async with asyncio.timeout(bound_s):
        while True:
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.005)


def events(content: bytes) -> list[Any]:
    """The data of a stream's events; ``[DONE]`` as a string."""
    parts = [part.removeprefix(b"data: ") for part in content.split(b"\n\n") if part]
    return ["[DONE]" if part == b"[DONE]" else json.loads(part) for part in parts]
