"""The demo's client against a real HTTP server with made-up answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvferry_connectors.demo.client import Answer, Client
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.ports import HeldPort
from kvferry_connectors.router.serve import RouterServer

BOUND_S = 15.0
ASKED_S, HELD_S = 0.25, 9.0
"""What the clock shows from when the question has come, and from when the answer is held up."""
HEADERS = {"x-kvferry-request": "kvf-1", "x-kvferry": "pulled=64 from=d0 3ms"}


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looks = 0
        self.looked_twice = asyncio.Event()

    def __call__(self) -> float:
        self.looks += 1
        if self.looks == 2:
            self.looked_twice.set()
        return self.now_s


class Server:
    """Answers with three tokens, the last of them when it is let."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.bodies: list[dict[str, object]] = []
        self.reuse: list[str] = []
        self.go_on = asyncio.Event()
        self.holding = asyncio.Event()
        """The last token is held back from now on."""
        self.status = 200
        self.error_in_stream = False

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.clock.now_s = ASKED_S
        self.bodies.append(body)
        self.reuse.append(request.headers.get("x-kvferry-reuse", ""))
        if self.status != 200:
            return JSONResponse({"error": "no"}, self.status)
        if not body["stream"]:
            await self._hold()
            return JSONResponse({"choices": [{"token_ids": [7, 8, 9]}]}, headers=HEADERS)
        return StreamingResponse(self._chunks(), headers=HEADERS, media_type="text/event-stream")

    async def _hold(self) -> None:
        self.holding.set()
        await self.go_on.wait()

    async def _chunks(self) -> AsyncIterator[bytes]:
        def event(value: object) -> bytes:
            return b"data: " + json.dumps(value).encode() + b"\n\n"

        # vLLM may send a chunk without tokens first; it is no first token.
        yield event({"choices": [{"token_ids": None, "text": ""}]})
        yield event({"choices": [{"token_ids": [7, 8]}]})
        await self._hold()
        if self.error_in_stream:
            yield event({"error": {"message": "it broke"}})
        yield event({"choices": [{"token_ids": [9]}]})
        yield event({"choices": [], "usage": {}})
        yield b"data: [DONE]\n\n"


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Client]:
    app = Starlette(routes=[Route("/v1/completions", server.complete, methods=["POST"])])
    port = HeldPort()
    web = RouterServer(uvicorn.Config(app, host="127.0.0.1", port=port.number, log_config=None))
    running = asyncio.create_task(web.serve())
    async with httpx.AsyncClient(trust_env=False, timeout=BOUND_S) as http:
        async with asyncio.timeout(BOUND_S):
            await web.answering.wait()
        yield Client(http, f"http://127.0.0.1:{port.number}", server.clock)
        server.go_on.set()
    web.should_exit = True
    await running
    port.close()


async def ask(client: Client, server: Server, *, stream: bool, held: asyncio.Event) -> Answer:
    """Asks, and holds the last token back until ``held`` is set and time has passed."""
    asking = asyncio.create_task(client.ask([1, 2], tokens=3, stream=stream, salt="s"))
    async with asyncio.timeout(BOUND_S):
        await held.wait()
    assert not asking.done()
    server.clock.now_s = HELD_S
    server.go_on.set()
    return await asking


async def test_a_stream_s_first_token_is_timed_and_not_its_end() -> None:
    server = Server()
    async with serving(server) as client:
        answer = await ask(client, server, stream=True, held=server.clock.looked_twice)
    assert answer.tokens == (7, 8, 9)
    assert answer.ttft_ms == ASKED_S * 1000
    assert (answer.request, answer.line) == ("kvf-1", "pulled=64 from=d0 3ms")
    assert server.bodies[0]["cache_salt"] == "s"
    assert server.bodies[0]["prompt"] == [1, 2]
    assert server.reuse == [""]


async def test_an_answer_that_is_not_streamed_is_timed_at_its_end() -> None:
    server = Server()
    async with serving(server) as client:
        answer = await ask(client, server, stream=False, held=server.holding)
    assert answer.tokens == (7, 8, 9)
    assert answer.ttft_ms == HELD_S * 1000


async def test_reuse_off_goes_as_a_header_and_no_salt_is_no_salt() -> None:
    server = Server()
    server.go_on.set()
    async with serving(server) as client:
        await client.ask([1], tokens=3, stream=False, reuse=False)
    assert server.reuse == ["off"]
    assert "cache_salt" not in server.bodies[0]


async def test_errors_are_said() -> None:
    server = Server()
    server.go_on.set()
    async with serving(server) as client:
        with pytest.raises(DemoError, match="asked for 5 tokens and got 3"):
            await client.ask([1], tokens=5, stream=True)
        server.error_in_stream = True
        with pytest.raises(DemoError, match="it broke"):
            await client.ask([1], tokens=3, stream=True)
        server.status = 503
        with pytest.raises(DemoError, match="answered 503"):
            await client.ask([1], tokens=3, stream=True)
        with pytest.raises(DemoError, match="answered 503"):
            await client.fill([1])
