"""The router's HTTP endpoints."""

from __future__ import annotations

import asyncio
import logging

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from kvferry_connectors.router.asked import read_request
from kvferry_connectors.router.bodies import Kind
from kvferry_connectors.router.context import Router
from kvferry_connectors.router.errors import Answer, Answered, bad_request, pool_down
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.reply import Reply
from kvferry_connectors.router.turn import Turn
from kvferry_connectors.router.upstream import answer_of, engine_headers

logger = logging.getLogger("kvferry.router")

_MODELS_S = 10.0
_TIDY_S = 5.0
"""How long a turn whose answer is out may take to put things away."""


class TurnEndpoint:
    """A generating endpoint, as an ASGI application."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        router: Router = request.app.state.router
        reply = Reply(send)
        try:
            content = await read_content(request, router.settings.body_bytes_max)
            asked = read_request(self._kind, content, request.headers, router.settings.retain_max_s)
        except ClientDisconnect:
            return
        except Answered as early:
            router.counters.turn("refused", None, "")
            await reply.whole(early.answer)
            return
        await _run_while_connected(Turn(router, asked, reply), reply, receive)


async def read_content(request: Request, bytes_max: int) -> bytes:
    """The whole body.

    Raises:
        Answered: with 413, if it is longer than ``bytes_max``.
        ClientDisconnect: the client left.
    """
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > bytes_max:
            raise bad_request(f"the body is longer than {bytes_max} bytes", 413)
    return bytes(content)


async def _run_while_connected(turn: Turn, reply: Reply, receive: Receive) -> None:
    """Runs the turn; the client's leaving cancels it, also while P is still at work."""
    running = asyncio.create_task(turn.run(), name="turn")
    leaving = asyncio.create_task(_left(receive), name="client")
    try:
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if reply.ended:
            await asyncio.wait({running}, timeout=_TIDY_S)
    finally:
        running.cancel()
        leaving.cancel()
        await asyncio.gather(running, leaving, return_exceptions=True)
    if not running.cancelled():
        running.result()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def health(request: Request) -> Response:
    """200 while turns can be answered, which takes one D; 503 otherwise. Names who is down."""
    router: Router = request.app.state.router
    engines = {
        pool.name: {
            engine.name: {"up": engine.up, "url": engine.url, "why": engine.why}
            for engine in pool.engines
        }
        for pool in (router.prefill, router.decode)
    }
    down = [e.name for p in (router.prefill, router.decode) for e in p.engines if not e.up]
    if router.tilert is not None:
        nodes = router.tilert.nodes.values()
        engines["tilert"] = {
            n.name: {"up": n.engine.up, "url": n.engine.url, "why": n.trouble()} for n in nodes
        }
        down += [n.name for n in nodes if not n.engine.up]
    serving = router.decode.any_up()
    status = "unavailable" if not serving else "degraded" if down else "ok"
    return JSONResponse(
        {"status": status, "down": down, "engines": engines}, status_code=200 if serving else 503
    )


async def metrics(request: Request) -> Response:
    router: Router = request.app.state.router
    return PlainTextResponse(
        router.counters.text([router.prefill, router.decode], len(router.book), router.tilert),
        media_type="text/plain; version=0.0.4",
    )


async def models(request: Request) -> Response:
    """The models of the first engine that answers, D before P."""
    router: Router = request.app.state.router
    headers = engine_headers(router.settings, request.headers, "kvf-models")
    for engine in (*router.decode.engines, *router.prefill.engines):
        if not engine.up:
            continue
        answer = await _get_models(router.client, engine, headers)
        if answer is not None:
            return as_response(answer)
    return as_response(pool_down("decode", router.decode.states()))


async def _get_models(
    client: httpx.AsyncClient, engine: Engine, headers: dict[str, str]
) -> Answer | None:
    try:
        async with asyncio.timeout(_MODELS_S):
            response = await client.get(f"{engine.url}/v1/models", headers=headers)
    except (TimeoutError, httpx.TransportError) as error:
        logger.warning("engine %s did not list its models (%s)", engine.name, error)
        engine.suspect()
        return None
    return answer_of(response, response.content) if response.status_code < 500 else None


def as_response(answer: Answer) -> Response:
    return Response(answer.content, answer.status, answer.headers)
