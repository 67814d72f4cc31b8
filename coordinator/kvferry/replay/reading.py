"""Reading a log in ways that several replays need."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from kvferry.errors import ConfigError
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ports.log import FACTS_STREAM, LogPort, Stored
from kvferry.replay.words import iso


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


async def covered(log: LogPort, stream: str) -> str:
    """Which messages of a stream a log holds, and when they were stored, in words."""
    bounds = await log.bounds(stream)
    text = f"messages {bounds.first} to {bounds.last}"
    ends = [await first_from(log, stream, seq) for seq in (bounds.first, bounds.last)]
    times = [iso(one.stored_ms) for one in ends if one is not None]
    return f"{text}, stored from {times[0]} to {times[-1]}" if times else text


async def facts_within(log: LogPort, first: int | None, last: int | None) -> tuple[int, int]:
    """First and last sequence of the facts that lie in a range; None leaves an end open.

    Raises:
        ConfigError: there are none; the text says what the ledger covers.
    """
    held = await log.bounds(FACTS_STREAM)
    if held.last < held.first:
        if isinstance(log, ArchiveLog):
            raise ConfigError(
                f"{log.path} has no facts" + (" that can be read" if log.damages else "")
            )
        raise ConfigError("the ledger is empty: let requests run first, then ask again")
    begin = held.first if first is None else max(held.first, first)
    end = held.last if last is None else min(held.last, last)
    if end < begin - 1 and held.first <= end and begin <= held.last:
        raise ConfigError(f"the range ends, at message {end}, before it begins, at {begin}")
    if end < begin:
        raise ConfigError(
            "nothing of the ledger lies in that range; its facts are "
            f"{await covered(log, FACTS_STREAM)}"
        )
    return begin, end
