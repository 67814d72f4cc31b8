"""Read events of one or both streams: a range, the last few, or as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import cast

from kvferry.cli.eventrecord import Record, Wanted, records
from kvferry.ports.log import LogPort
from kvferry.replay.reading import closing

WINDOW_MESSAGES = 512
"""How far back the first look for the last events goes; each further look goes twice as far."""
QUEUE_RECORDS_MAX = 4_096


class Range:
    """One stream between two sequences, both included; ``last`` None is the end."""

    def __init__(self, stream: str, first: int, last: int | None) -> None:
        self.stream = stream
        self.first = first
        self.last = last


async def read_range(
    log: LogPort, part: Range, wanted: Wanted, *, follow: bool = False
) -> AsyncGenerator[Record, None]:
    """The wanted events of one stream in its order."""
    if part.last is not None and part.last < part.first:
        return
    source = log.read(part.stream, start=max(1, part.first), follow=follow)
    async with closing(source) as messages:
        async for stored in messages:
            if part.last is not None and stored.seq > part.last:
                return
            for record in records(part.stream, stored):
                if wanted(record):
                    yield record
            if stored.seq == part.last:
                return


async def read_ranges(
    log: LogPort, parts: Sequence[Range], wanted: Wanted, *, follow: bool = False
) -> AsyncGenerator[Record, None]:
    """Several streams as one: a range in order of store time, followed ones as they come."""
    if len(parts) == 1:
        async for record in read_range(log, parts[0], wanted, follow=follow):
            yield record
    elif follow:
        async for record in _as_they_come(log, parts, wanted):
            yield record
    else:
        async for record in _by_store_time(log, parts, wanted):
            yield record


async def _by_store_time(
    log: LogPort, parts: Sequence[Range], wanted: Wanted
) -> AsyncGenerator[Record, None]:
    readers = [read_range(log, part, wanted) for part in parts]
    heads = [await anext(reader, None) for reader in readers]
    while True:
        waiting = [i for i, head in enumerate(heads) if head is not None]
        if not waiting:
            return
        i = min(waiting, key=lambda n: (cast(Record, heads[n]).stored.stored_ms, n))
        yield cast(Record, heads[i])
        heads[i] = await anext(readers[i], None)


async def _as_they_come(
    log: LogPort, parts: Sequence[Range], wanted: Wanted
) -> AsyncGenerator[Record, None]:
    queue: asyncio.Queue[Record | BaseException] = asyncio.Queue(QUEUE_RECORDS_MAX)

    async def pump(part: Range) -> None:
        try:
            async for record in read_range(log, part, wanted, follow=True):
                await queue.put(record)
        except Exception as error:
            # Handed to the reader below, which raises it where somebody sees it.
            await queue.put(error)

    pumps = [asyncio.create_task(pump(part)) for part in parts]
    try:
        while True:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def last_records(
    log: LogPort, stream: str, wanted: Wanted, count: int, last: int | None = None
) -> list[Record]:
    """The last ``count`` wanted events of a stream up to sequence ``last``, in order.

    Looks at ever larger windows from the end, so that a short tail of a long ledger is cheap.
    """
    bounds = await log.bounds(stream)
    end = bounds.last if last is None else min(last, bounds.last)
    span = WINDOW_MESSAGES
    while True:
        first = max(bounds.first, end - span + 1)
        found: deque[Record] = deque(maxlen=count)
        async for record in read_range(log, Range(stream, first, end), wanted):
            found.append(record)
        if len(found) == count or first <= bounds.first:
            return list(found)
        span *= 2
