"""What all turns share, and how a turn speaks to one engine."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import httpx

from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.counters import Counters
from kvferry_connectors.router.errors import EngineFailed, RouterError
from kvferry_connectors.router.ledger import RouterLedger
from kvferry_connectors.router.pools import Engine, Pool
from kvferry_connectors.router.sessions import SessionBook
from kvferry_connectors.router.settings import RouterSettings
from kvferry_connectors.router.tilert.pool import TilertPool
from kvferry_connectors.router.upstream import engine_headers, post

logger = logging.getLogger("kvferry.router")

OK = 200
CLIENT_ERRORS = 400
SERVER_ERRORS = 500


@dataclass(frozen=True)
class Router:
    """One router process. Used from its event loop only."""

    settings: RouterSettings
    client: httpx.AsyncClient
    prefill: Pool
    decode: Pool
    book: SessionBook
    counters: Counters
    ledger: RouterLedger | None
    tilert: TilertPool | None = None


def request_name(turn: str, role: str, attempt: int) -> str:
    """The ``X-Request-Id`` of one attempt, which the engine's own id of it contains."""
    return f"{turn}-{role}" if attempt == 1 else f"{turn}-{role}{attempt}"


def ask_engine(
    router: Router, asked: Asked, engine: Engine, content: bytes, name: str
) -> AbstractAsyncContextManager[httpx.Response]:
    """Sends one attempt to an engine; see :func:`kvferry_connectors.router.upstream.post`."""
    headers = engine_headers(router.settings, asked.headers, name)
    return post(router.client, engine, asked.kind.value, content, headers)


def note_failure(router: Router, asked: Asked, error: RouterError) -> None:
    """Counts and logs a failed attempt."""
    if isinstance(error, EngineFailed):
        router.counters.failures[error.engine] += 1
    logger.warning("turn %s: %s", asked.id, error)
