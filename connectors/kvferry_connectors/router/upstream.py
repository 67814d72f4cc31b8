"""Requests to engines: one POST whose failures before and during its answer are told apart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx

from kvferry_connectors.router.errors import Answer, EngineFailed
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.settings import RouterSettings

# Shorter than the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request
# sent into a connection that is just being closed fails for nothing.
_IDLE_CONNECTION_S = 2.0
_TRIES_MAX = 2
_PASSED_ON = ("traceparent", "tracestate")
_PASSED_BACK = ("content-type", "retry-after", "www-authenticate")


def make_client(settings: RouterSettings) -> httpx.AsyncClient:
    """A client without any limit on how long an engine may generate."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=settings.connect_timeout_s),
        limits=httpx.Limits(
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=_IDLE_CONNECTION_S,
        ),
        trust_env=False,
        follow_redirects=False,
    )


def engine_headers(
    settings: RouterSettings, client_headers: Mapping[str, str], request: str
) -> dict[str, str]:
    """What an engine is sent: a fixed set, never all that a client says."""
    headers = {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-request-id": request,
    }
    authorization = client_headers.get("authorization", "")
    if settings.engine_api_key:
        authorization = f"Bearer {settings.engine_api_key}"
    if authorization:
        headers["authorization"] = authorization
    return headers | {name: client_headers[name] for name in _PASSED_ON if name in client_headers}


@asynccontextmanager
async def post(
    client: httpx.AsyncClient, engine: Engine, path: str, content: bytes, headers: dict[str, str]
) -> AsyncIterator[httpx.Response]:
    """The answer's head; its body is read inside the block. Leaving the block ends the request.

    Raises:
        EngineFailed: no answer, or it broke off.
    """
    async with engine.carry():
        try:
            response = await _send(client, engine, path, content, headers)
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            engine.mark_down(f"no connection to {engine.url} ({type(error).__name__})")
            raise EngineFailed(engine.name, "cannot be reached", reached=False) from error
        except httpx.TransportError as error:
            engine.suspect()
            raise EngineFailed(engine.name, f"broke off ({type(error).__name__})") from error


async def _send(
    client: httpx.AsyncClient, engine: Engine, path: str, content: bytes, headers: dict[str, str]
) -> httpx.Response:
    for left in range(_TRIES_MAX - 1, -1, -1):
        request = client.build_request(
            "POST", f"{engine.url}{path}", content=content, headers=headers
        )
        try:
            return await client.send(request, stream=True)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # Most likely a kept connection that the engine closed just now.
            if not left:
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def answer_of(response: httpx.Response, content: bytes) -> Answer:
    """An engine's whole answer with the headers that are meant for clients."""
    headers = {name: response.headers[name] for name in _PASSED_BACK if name in response.headers}
    headers.setdefault("content-type", "application/json")
    return Answer(response.status_code, content, headers)
