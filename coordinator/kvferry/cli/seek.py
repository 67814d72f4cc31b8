"""Find a place in a stream: by time, or so many messages before the end."""

from __future__ import annotations

from kvferry.cli.times import Point
from kvferry.ports.log import LogPort
from kvferry.replay.reading import first_from


async def seq_at(log: LogPort, stream: str, time_ms: int) -> int:
    """The first sequence stored at or after ``time_ms``; one past the last when there is none.

    Store times grow with sequences, so halving the range finds it in about log2(n) reads.
    """
    bounds = await log.bounds(stream)
    low, high = bounds.first, bounds.last + 1
    while low < high:
        middle = (low + high) // 2
        message = await first_from(log, stream, middle)
        if message is None or message.seq >= high:
            high = middle
        elif message.stored_ms >= time_ms:
            # Nothing lies between ``middle`` and this message, so it is the first from there.
            high = middle
        else:
            low = message.seq + 1
    return low


async def start_seq(log: LogPort, stream: str, point: Point) -> int:
    """Where to begin so that ``point`` is included."""
    if point.seq is not None:
        return point.seq
    assert point.time_ms is not None
    return await seq_at(log, stream, point.time_ms)


async def end_seq(log: LogPort, stream: str, point: Point) -> int:
    """The last sequence up to and including ``point``."""
    if point.seq is not None:
        return point.seq
    assert point.time_ms is not None
    return await seq_at(log, stream, point.time_ms + 1) - 1
