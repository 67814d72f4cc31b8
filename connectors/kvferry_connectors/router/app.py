"""The router as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvferry_connectors.router.bodies import Kind
from kvferry_connectors.router.context import Router
from kvferry_connectors.router.counters import Counters
from kvferry_connectors.router.endpoints import TurnEndpoint, as_response, health, metrics, models
from kvferry_connectors.router.errors import error_answer
from kvferry_connectors.router.health import Prober
from kvferry_connectors.router.ledger import RouterLedger
from kvferry_connectors.router.pools import Pool
from kvferry_connectors.router.sessions import SessionBook
from kvferry_connectors.router.settings import RouterSettings
from kvferry_connectors.router.tilert.model import Model, read_model
from kvferry_connectors.router.tilert.opening import open_tilert
from kvferry_connectors.router.upstream import make_client


def create_app(settings: RouterSettings) -> Starlette:
    """A router for the engines in ``settings``; its parts live as long as its lifespan.

    Raises:
        ConfigError: a file that TileRT nodes need is missing or cannot be read.
    """
    model = read_model(settings.tilert.tokenizer) if settings.tilert is not None else None

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with open_router(settings, model) as router:
            app.state.router = router
            yield

    turns = [Route(kind.value, TurnEndpoint(kind), methods=["POST"]) for kind in Kind]
    return Starlette(
        routes=[
            *turns,
            Route("/v1/models", models, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
        lifespan=lifespan,
    )


@asynccontextmanager
async def open_router(settings: RouterSettings, model: Model | None) -> AsyncIterator[Router]:
    """Everything that turns share, probed and ready; closed again at the end."""
    ledger = RouterLedger.open(settings.in_ledger()) if settings.nats_url else None
    try:
        async with (
            make_client(settings) as client,
            open_tilert(settings, model, client) as tilert,
        ):
            router = Router(
                settings=settings,
                client=client,
                prefill=Pool("prefill", settings.prefill),
                decode=Pool("decode", settings.decode),
                book=SessionBook(settings.turns_max),
                counters=Counters(),
                ledger=ledger,
                tilert=tilert,
            )
            engines = [*router.prefill.engines, *router.decode.engines]
            engines += tilert.engines if tilert is not None else []
            prober = Prober(settings, client, engines)
            try:
                await prober.start()
                yield router
            finally:
                await prober.stop()
    finally:
        if ledger is not None:
            await asyncio.to_thread(ledger.close)


async def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        message = f"no such endpoint: {request.method} {request.url.path}"
        return as_response(error_answer(404, "not_found_error", message))
    detail = error.detail if isinstance(error, HTTPException) else "error"
    message = f"{detail}: {request.method} {request.url.path}"
    return as_response(error_answer(status, "invalid_request_error", message))


async def _failed(request: Request, error: Exception) -> Response:
    message = f"the router failed ({type(error).__name__}); its log has the details"
    return as_response(error_answer(500, "server_error", message))
