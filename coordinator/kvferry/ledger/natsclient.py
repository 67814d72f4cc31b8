"""The few insides of nats-py that we need, each guarded, in one place.

nats-py reconnects by itself, but sticks when a hung server leaves bytes unsent, keeps sending
what it had buffered, and stays closed for ever after many errors. So its reconnection is off,
and a lost client is thrown away and replaced (:mod:`kvferry.ledger.link`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

_log = logging.getLogger("kvferry.ledger")

PING_INTERVAL_S = 5
FLUSH_WAIT_S = 2.0
PENDING_BYTES_MAX = 16 * 1024 * 1024
DISPOSE_WAIT_S = 2.0
CANCEL_WAIT_S = 0.2
CANCELS_MAX = 20

_TASKS = ("_reading_task", "_ping_interval_task", "_flusher_task", "_reconnection_task")
_VIOLATION = re.compile(
    r"permissions violation for (publish|subscription)[^\"]*\"([^\"]*)\"", re.IGNORECASE
)


async def open_client(
    server: str,
    *,
    name: str,
    options: dict[str, Any],
    inbox_prefix: str,
    on_error: Callable[[Exception], Awaitable[None]],
    on_closed: Callable[[], Awaitable[None]],
    timeout_s: float,
) -> Client:
    """A connected client of one server.

    Raises:
        TimeoutError, OSError, nats.errors.Error: not connected; nothing is left behind.
    """
    client = Client()
    causes: list[Exception] = []

    async def errored(error: Exception) -> None:
        causes.append(error)
        del causes[:-8]
        await on_error(error)

    try:
        async with asyncio.timeout(timeout_s):
            await client.connect(
                servers=[server],
                name=name,
                error_cb=errored,
                closed_cb=on_closed,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0.05,
                connect_timeout=timeout_s,
                ping_interval=PING_INTERVAL_S,
                pending_size=PENDING_BYTES_MAX,
                flush_timeout=FLUSH_WAIT_S,
                inbox_prefix=inbox_prefix,
                **options,
            )
    except nats.errors.NoServersError as error:
        await dispose(client)
        raise (causes[-1] if causes else error) from None
    except BaseException:
        await dispose(client)
        raise
    return client


class _Pong(asyncio.Future[bool]):
    """Takes a result also when nobody waits any more. A pong for a future that was cancelled ends
    nats-py's reader for good, and its flush then returns without having asked anybody."""

    def set_result(self, result: bool) -> None:
        if not self.done():
            super().set_result(result)


async def barrier(client: Client, timeout_s: float) -> None:
    """Return once the server has taken all that was sent, and we its errors about it.

    Raises:
        nats.errors.Error: not in time, or the connection broke.
    """
    # nats-py writes a ping ahead of what it still holds back; the second one comes after that.
    for _ in range(2):
        reading = getattr(client, "_reading_task", None)
        if client.is_closed or reading is None or reading.done():
            raise nats.errors.ConnectionClosedError
        pong = _Pong()
        try:
            async with asyncio.timeout(timeout_s):
                await client._send_ping(pong)
                await pong
        except TimeoutError:
            raise nats.errors.FlushTimeoutError from None


def abort_transport(client: Client) -> None:
    """Close the socket at once, whatever is unsent: a graceful close waits for the peer."""
    transport = getattr(client, "_transport", None)
    writer = getattr(transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


async def dispose(client: Client) -> None:
    """Close a client whose server may be gone or hung, and await its tasks."""
    pending = getattr(client, "_pending", None)
    if isinstance(pending, list):
        pending.clear()
        client._pending_data_size = 0
    subscriptions = list(getattr(client, "_subs", {}).values())
    abort_transport(client)
    try:
        async with asyncio.timeout(DISPOSE_WAIT_S):
            await client.close()
    except (TimeoutError, OSError, nats.errors.Error) as error:
        _log.debug("closing a lost NATS client: %r", error)
    tasks = {getattr(client, name, None) for name in _TASKS}
    tasks |= {getattr(sub, "_wait_for_msgs_task", None) for sub in subscriptions}
    await cancel({task for task in tasks if isinstance(task, asyncio.Task)})


async def cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel and await, in bounded time; again and again, for nats-py swallows some cancels."""
    running = {task for task in tasks if not task.done()} - {asyncio.current_task()}
    for _ in range(CANCELS_MAX):
        if not running:
            return
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_WAIT_S)
    if running:
        _log.error("tasks that do not end: %s", ", ".join(task.get_name() for task in running))


def violation(error: Exception) -> tuple[str, str] | None:
    """(``publish`` or ``subscription``, subject in lower case) if the server forbade something."""
    found = _VIOLATION.search(str(error))
    return (found[1].lower(), found[2].lower()) if found else None
