"""Runs a router until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from kvferry.errors import ConfigError
from kvferry_connectors.router.app import create_app
from kvferry_connectors.router.settings import RouterSettings

logger = logging.getLogger("kvferry.router")

_BACKLOG = 2048


def run(
    settings: RouterSettings,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, then lets requests in flight finish for ``drain_s``.

    Args:
        port: 0 takes a free one.
        ready: called with the router's url once it answers.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    # httpx logs every request at INFO, health probes included; a turn has a line of its own.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(_serve(settings, host, port, ready))


class RouterServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller and says when it answers.

    uvicorn raises the signal that stopped it once more when it is done, which would make a
    clean stop look like a crash.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.answering.set()


def make_server(settings: RouterSettings) -> RouterServer:
    """A server for a router, not yet listening."""
    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        # uvicorn takes whole seconds and would take 0 for no bound at all.
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
    )
    return RouterServer(config)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --port"
        ) from error


async def _serve(
    settings: RouterSettings, host: str, port: int, ready: Callable[[str], None] | None
) -> None:
    listener = listen(host, port)
    server = make_server(settings)

    def stop() -> None:
        # A second signal does not wait for requests in flight.
        server.force_exit = server.should_exit
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    serving = asyncio.create_task(server.serve([listener]))
    announcing = asyncio.create_task(_announce(server, listener, ready))
    try:
        await serving
    finally:
        announcing.cancel()
        outcome = (await asyncio.gather(announcing, return_exceptions=True))[0]
        listener.close()
    if isinstance(outcome, Exception):
        raise outcome


async def _announce(
    server: RouterServer, listener: socket.socket, ready: Callable[[str], None] | None
) -> None:
    await server.answering.wait()
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    logger.info("router listens on %s", url)
    if ready is not None:
        ready(url)
