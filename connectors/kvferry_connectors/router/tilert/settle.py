"""Makes a node give a request up, and makes sure that it did."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx

from kvferry_connectors.router.errors import EngineFailed
from kvferry_connectors.router.tilert.node import Node, cancel
from kvferry_connectors.router.upstream import post

logger = logging.getLogger("kvferry.router")

HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
"""Nothing of a client's: a node knows no credentials."""
CANCEL_EVERY_S = 0.1
_BUSY = 429
_SURE = (200, 499)


async def settle(client: httpx.AsyncClient, node: Node, rid: str, within_s: float) -> str:
    """Ends what prefill may have begun under ``rid``; empty if the node confirmed it, else why not.

    A node knows a request's KV from its sender and cannot be told to forget it. But it can be
    asked to decode, which it does or waits for, and that can be cancelled: its reply is the proof
    that it released the rid, and from then on it turns a late sender away.

    The reply is not streamed, so that the node's own handler runs to its end whatever happens to
    the connection.
    """
    content = json.dumps(
        {"rid": rid, "first_token_id": 0, "max_tokens": 1, "timeout_s": within_s}
    ).encode()
    asking = asyncio.create_task(_ask(client, node, content), name=f"settle-{rid}")
    try:
        async with asyncio.timeout(within_s):
            while not asking.done():
                await cancel(client, node, rid, within_s)
                await asyncio.wait({asking}, timeout=CANCEL_EVERY_S)
        status = asking.result()
    except TimeoutError:
        return f"{node.name} did not confirm within {within_s:g} s that it gave {rid} up"
    except EngineFailed as error:
        return str(error)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    if status in _SURE:
        return ""
    if status == _BUSY:
        return f"{node.name} is busy with another request"
    return f"{node.name} answered {status} when it was asked to give {rid} up"


async def _ask(client: httpx.AsyncClient, node: Node, content: bytes) -> int:
    async with post(client, node.engine, "/pd/decode", content, HEADERS) as response:
        await response.aread()
        return response.status_code
