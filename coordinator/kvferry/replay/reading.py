"""Reading a log in ways that several replays need."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from kvferry.ports.log import LogPort, Stored


def closing(messages: AsyncIterator[Stored]) -> aclosing[AsyncGenerator[Stored, None]]:
    """End a reader for certain when its loop is left, so that its consumer does not linger."""
    return aclosing(cast("AsyncGenerator[Stored, None]", messages))


async def message_at(log: LogPort, stream: str, seq: int) -> Stored | None:
    """The message at exactly ``seq``; None when it is gone."""
    async with closing(log.read(stream, start=seq)) as messages:
        async for stored in messages:
            return stored if stored.seq == seq else None
    return None
