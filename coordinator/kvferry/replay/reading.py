"""Reading a log in ways that several replays need."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from kvferry.errors import ConfigError
from kvferry.ports.log import FACTS_STREAM, LogPort, Stored


def closing(messages: AsyncIterator[Stored]) -> aclosing[AsyncGenerator[Stored, None]]:
    """End a reader for certain when its loop is left, so that its consumer does not linger."""
    return aclosing(cast("AsyncGenerator[Stored, None]", messages))


async def between(log: LogPort, stream: str, first: int, last: int) -> AsyncGenerator[Stored, None]:
    """Messages ``first`` to ``last``, those of them that are there. Leave it through
    :func:`closing`, as every reader."""
    if last < first:
        return
    async with closing(log.read(stream, start=first)) as messages:
        async for stored in messages:
            if stored.seq > last:
                return
            yield stored
            if stored.seq == last:
                return


async def first_from(log: LogPort, stream: str, seq: int) -> Stored | None:
    """The first message at or after ``seq``."""
    async with closing(log.read(stream, start=seq)) as messages:
        async for stored in messages:
            return stored
    return None


async def message_at(log: LogPort, stream: str, seq: int) -> Stored | None:
    """The message at exactly ``seq``; None when it is gone."""
    found = await first_from(log, stream, seq)
    return found if found is not None and found.seq == seq else None


async def facts_within(log: LogPort, first: int | None, last: int | None) -> tuple[int, int]:
    """First and last sequence of the facts that lie in a range; None leaves an end open.

    Raises:
        ConfigError: there are none; the text says what the ledger covers.
    """
    held = await log.bounds(FACTS_STREAM)
    if held.last < held.first:
        raise ConfigError("the ledger is empty: let requests run first, then ask again")
    begin = held.first if first is None else max(held.first, first)
    end = held.last if last is None else min(held.last, last)
    if end < begin:
        raise ConfigError(
            "nothing of the ledger lies in that range; its facts are messages "
            f"{held.first} to {held.last}"
        )
    return begin, end
