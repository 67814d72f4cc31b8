"""A ledger, or a part of it, into a file; and a file back into an empty ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvferry.core.events import SCHEMAS
from kvferry.core.state import State
from kvferry.errors import CodecError, LedgerRefused
from kvferry.ledger.archive.contents import STREAMS, Head, Range
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ledger.archive.writer import ArchiveWriter, writing
from kvferry.ledger.codec import encode
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, LogPort, Stored
from kvferry.replay.fold import Progress, fold_to
from kvferry.replay.reading import between, closing, message_at
from kvferry.replay.snapshots import CATALOGUE, Catalogue, described, version
from kvferry.replay.step import read_batch, step
from kvferry.replay.strip import Stripper

PROGRESS_MESSAGES = 256
IMPORT_BATCH_BYTES = 4 * 1024 * 1024


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What an export wrote."""

    file: str
    bytes: int
    messages: dict[str, int]
    ranges: dict[str, Range]
    stripped: bool
    left_out: int
    """Messages that could not be read, and therefore not be stripped."""
    state: str
    """How a replay of the file begins: ``empty``, ``snapshot`` or ``unknown``."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import appended."""

    file: str
    messages: dict[str, int]


class _Counter:
    """Reports over all that is copied."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done = 0
        self.total = total
        self._progress = progress

    def one(self) -> None:
        self.done += 1
        if self._progress is not None and self.done % PROGRESS_MESSAGES == 0:
            self._progress(self.done, self.total)


async def export(
    log: LogPort,
    path: Path,
    ranges: dict[str, Range],
    *,
    strip: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write the messages of ``ranges`` to a file.

    Where the facts do not begin with the ledger's first message, the state before them goes into
    the file as a snapshot, so that a replay of it knows what came before.

    Raises:
        ConfigError: the file cannot be written.
        LedgerUnavailable: the log does not answer; then no file is left.
    """
    stripper = Stripper() if strip else None
    facts = ranges[FACTS_STREAM]
    head = Head(
        writer=version(),
        created_ms=time.time_ns() // 1_000_000,
        ranges=ranges,
        schemas={name: version for name, (version, _) in SCHEMAS.items()},
        stripped=strip,
    )
    counter = _Counter(sum(one.last - one.first + 1 for one in ranges.values()), progress)
    left_out = 0
    with writing(path, head) as out:
        begins = await _state_before(log, facts, stripper, out)
        for stream in STREAMS:
            left_out += await _copy(log, stream, ranges[stream], stripper, out, counter)
    if progress is not None:
        progress(counter.total, counter.total)
    return Exported(
        file=str(path),
        bytes=out.bytes_written,
        messages=out.messages,
        ranges=ranges,
        stripped=strip,
        left_out=left_out,
        state=begins,
    )


async def _state_before(
    log: LogPort, facts: Range, stripper: Stripper | None, out: ArchiveWriter
) -> str:
    before = facts.first - 1
    if before <= 0:
        return "empty"
    try:
        if stripper is None:
            state = await fold_to(log, to_seq=before)
        else:
            state = await _stripped_state(log, before, stripper)
    except LedgerRefused:
        return "unknown"
    last = await message_at(log, FACTS_STREAM, before)
    entry, data = described(state, last.stored_ms if last is not None else 0)
    out.add_object(CATALOGUE, msgspec.msgpack.encode(Catalogue((entry,))))
    out.add_object(entry.object, data)
    return "snapshot"


async def _stripped_state(log: LogPort, before: int, stripper: Stripper) -> State:
    """The state as it is after the stripped messages; nothing of a stored one can be stripped."""
    if (await log.bounds(FACTS_STREAM)).first > 1:
        raise LedgerRefused("the ledger's beginning is gone")
    state = State()
    async with closing(between(log, FACTS_STREAM, 1, before)) as messages:
        async for stored in messages:
            one = _strip(stored, stripper)
            if one is not None:
                step(state, one)
            state.position = stored.seq
    return state


async def _copy(
    log: LogPort,
    stream: str,
    wanted: Range,
    stripper: Stripper | None,
    out: ArchiveWriter,
    counter: _Counter,
) -> int:
    left_out = 0
    async with closing(between(log, stream, wanted.first, wanted.last)) as messages:
        async for stored in messages:
            one = stored if stripper is None else _strip(stored, stripper)
            if one is None:
                left_out += 1
            else:
                out.add(stream, one)
            counter.one()
    return left_out


def _strip(stored: Stored, stripper: Stripper) -> Stored | None:
    try:
        batch = read_batch(stored)
    except CodecError:
        return None
    return msgspec.structs.replace(stored, data=encode(stripper.batch(batch)))


async def import_into(
    archive: ArchiveLog,
    log: LogPort,
    *,
    progress: Progress | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Imported:
    """Append a file's messages to an empty ledger, in their order.

    They get new sequences and store times; what the file says of the state before them is not taken
    over, for a ledger's first message has none before it.

    Raises:
        LedgerRefused: the ledger is not empty.
        LedgerUnavailable: it does not answer.
    """
    for stream in STREAMS:
        if (await log.bounds(stream)).last:
            raise LedgerRefused(
                f"the ledger's stream {stream} has messages already; import into an empty one, "
                "for example of `kvferry up --store NEW_FOLDER`"
            )
    bounds = {stream: await archive.bounds(stream) for stream in STREAMS}
    if bounds[FACTS_STREAM].first > 1:
        note(
            "the file begins in the middle of a ledger: nodes that joined before it are unknown "
            "to the new one; read the file itself with --file to see them"
        )
    counter = _Counter(sum(one.last - one.first + 1 for one in bounds.values()), progress)
    appended = dict.fromkeys(STREAMS, 0)
    for stream in STREAMS:
        batch: list[tuple[str, bytes, str]] = []
        size = 0
        async for stored in archive.read(stream):
            batch.append((stored.subject, stored.data, f"import:{stream}:{stored.seq}"))
            size += len(stored.data)
            appended[stream] += 1
            counter.one()
            if size >= IMPORT_BATCH_BYTES:
                await log.append_many(batch)
                batch, size = [], 0
        if batch:
            await log.append_many(batch)
    return Imported(file=str(archive.path), messages=appended)


async def whole(log: LogPort) -> dict[str, Range]:
    """Everything that the ledger holds."""
    found = {}
    for stream in (FACTS_STREAM, BLOCKS_STREAM):
        bounds = await log.bounds(stream)
        found[stream] = Range(bounds.first, bounds.last)
    return found
