"""Which nodes are heard on the bus right now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

import msgspec

from kvferry.core.messages import HEARTBEATS, Heartbeat
from kvferry.ports.log import BusPort, Reply

LISTEN_S = 5.0
"""Nodes beat once a second; four may be lost on a busy machine."""


async def beating(bus: BusPort, expected: Collection[tuple[str, str]]) -> set[str]:
    """Names of the expected (node, incarnation) whose heartbeat came.

    Ends as soon as all were heard, and after :data:`LISTEN_S` at the latest.
    """
    missing = set(expected)
    if not missing:
        return set()
    found: set[str] = set()
    complete = asyncio.Event()

    async def on_beat(subject: str, data: bytes, reply: Reply | None) -> None:
        # Somebody else's bytes on our subject are not a heartbeat.
        with contextlib.suppress(msgspec.MsgspecError):
            beat = msgspec.msgpack.decode(data, type=Heartbeat)
            if (beat.node, beat.incarnation) in missing:
                missing.discard((beat.node, beat.incarnation))
                found.add(beat.node)
            if not missing:
                complete.set()

    stop = await bus.subscribe(HEARTBEATS, on_beat)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_S):
                await complete.wait()
    finally:
        await stop()
    return found
