"""A range of the facts as a file for the Perfetto UI."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvferry.errors import CodecError
from kvferry.files import draft
from kvferry.ports.log import FACTS_STREAM, LogPort
from kvferry.replay.fold import Progress
from kvferry.replay.perfetto.draw import Drawing
from kvferry.replay.perfetto.packets import Packets
from kvferry.replay.reading import between, closing
from kvferry.replay.step import read_batch

PROGRESS_MESSAGES = 256


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    file: str
    bytes: int
    messages: int
    packets: int


async def write_trace(
    log: LogPort, path: Path, first: int, last: int, *, progress: Progress | None = None
) -> Traced:
    """Draw the facts ``first`` to ``last``.

    One branch a space, beneath it one a node with rows for requests, transfers in, pins, leases by
    tier and offers; plans and faults as instants; an arrow from each pin at a source to the
    transfer at its target.

    Raises:
        ConfigError: the file cannot be written, or Perfetto's package is not installed.
        LedgerUnavailable: the log does not answer; then no file is left.
    """
    messages = 0
    with draft(path) as file:
        packets = Packets(file)
        drawing = Drawing(packets)
        async with closing(between(log, FACTS_STREAM, first, last)) as facts:
            async for stored in facts:
                messages += 1
                try:
                    batch = read_batch(stored)
                except CodecError:
                    continue  # `kvferry audit` tells of it.
                for entry in batch.entries:
                    drawing.draw(stored, batch, entry)
                if progress is not None and messages % PROGRESS_MESSAGES == 0:
                    progress(messages, last - first + 1)
        drawing.finish()
        size = file.tell()
    return Traced(file=str(path), bytes=size, messages=messages, packets=packets.written)
