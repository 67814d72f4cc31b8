"""One TileRT node as the router sees it, and its small questions."""

from __future__ import annotations

import asyncio
import json
import time

import httpx

from kvferry.node.slots import SlotNode
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.settings import EngineUrl

_JSON = {"content-type": "application/json"}


class Node:
    """A node's health and address.

    Attributes:
        slot_node: as the coordinator knows it.
        engine: whether it is up, and what is in flight there; looked at by the router's prober.
    """

    def __init__(self, slot_node: SlotNode) -> None:
        self.name = slot_node.name
        self.slot_node = slot_node
        self.engine = Engine(EngineUrl(slot_node.name, slot_node.http), "tilert")
        self._foreign_until_s = 0.0
        self._foreign_rid = ""

    def usable(self) -> bool:
        """Up, and not seen in somebody else's hands just now."""
        return self.engine.up and time.monotonic() >= self._foreign_until_s

    def trouble(self) -> str:
        """Why it is not usable, for people; ``up`` if it is."""
        if not self.engine.up:
            return self.engine.why
        if not self.usable():
            return f"decodes {self._foreign_rid or 'something'} that no lease of ours covers"
        return "up"

    def foreign(self, rid: str, pause_s: float) -> None:
        """Somebody else's request was seen on it: it is passed over for ``pause_s``."""
        self._foreign_until_s = time.monotonic() + pause_s
        self._foreign_rid = rid


async def busy_with(client: httpx.AsyncClient, node: Node, within_s: float) -> str | None:
    """The rid that a node decodes, empty if it says none; ``None`` while it is idle.

    Raises:
        httpx.TransportError, TimeoutError, ValueError: it did not say.
    """
    async with asyncio.timeout(within_s):
        answer = await client.get(f"{node.engine.url}/decode_status")
    status = answer.json()
    if answer.status_code != 200 or not isinstance(status, dict):
        raise ValueError(f"/decode_status answered {answer.status_code}")
    if status.get("status") == "idle":
        return None
    rid = status.get("current_rid")
    return rid if isinstance(rid, str) else ""


async def cancel(client: httpx.AsyncClient, node: Node, rid: str, within_s: float) -> bool:
    """Asks a node to give ``rid`` up; whether it says that it will. False where it does not
    decode that rid, or did not answer."""
    content = json.dumps({"rid": rid}).encode()
    try:
        async with asyncio.timeout(within_s):
            answer = await client.post(
                f"{node.engine.url}/pd/cancel", content=content, headers=_JSON
            )
    except (TimeoutError, httpx.TransportError):
        return False
    return answer.status_code == 200


def decode_content(
    rid: str, first: int, max_tokens: int, sampling: dict[str, float | bool], kv_wait_s: float
) -> bytes:
    """The body of a streamed ``/pd/decode``."""
    return json.dumps(
        {
            "rid": rid,
            "first_token_id": first,
            "max_tokens": max_tokens,
            "sampling": sampling,
            "timeout_s": kv_wait_s,
            "stream": True,
        }
    ).encode()
