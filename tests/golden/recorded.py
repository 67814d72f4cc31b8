"""What stands in a recording: its events, and a copy of it with one of them altered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from kvferry.core.envelope import Entry
from kvferry.core.events import AnyEvent
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ledger.archive.writer import writing
from kvferry.ledger.codec import decode, encode
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, Stored

T = TypeVar("T", bound=AnyEvent)
Alter = Callable[[AnyEvent], AnyEvent]


class Fact(NamedTuple):
    """One fact of a recording."""

    seq: int
    node: str
    event: AnyEvent


def facts(path: Path) -> list[Fact]:
    """Every fact, in the order of the stream."""
    found = []
    for stored in _messages(path, FACTS_STREAM):
        batch = decode(stored.data)
        found += [Fact(stored.seq, batch.node, entry.event) for entry in batch.entries]
    return found


def only(found: list[Fact], kind: type[T], **fields: object) -> T:
    """The one event of a kind with these fields; text may be the beginning of a field."""
    (event,) = every(found, kind, **fields)
    return event


def every(found: list[Fact], kind: type[T], **fields: object) -> list[T]:
    """The events of a kind with these fields."""
    return [
        fact.event
        for fact in found
        if isinstance(fact.event, kind)
        and all(_like(getattr(fact.event, name), value) for name, value in fields.items())
    ]


def altered(path: Path, to: Path, alter: Alter) -> int:
    """Write a copy in which each fact is what ``alter`` makes of it; how many differ."""
    changed = 0
    archive = ArchiveLog(path)
    with writing(to, archive.head) as out:
        for stream in (FACTS_STREAM, BLOCKS_STREAM):
            for stored in _messages(path, stream):
                if stream == FACTS_STREAM:
                    batch = decode(stored.data)
                    entries = tuple(_altered(entry, alter) for entry in batch.entries)
                    changed += sum(a != b for a, b in zip(entries, batch.entries, strict=True))
                    data = encode(msgspec.structs.replace(batch, entries=entries))
                    stored = msgspec.structs.replace(stored, data=data)
                out.add(stream, stored)
    asyncio.run(archive.close())
    return changed


def _altered(entry: Entry, alter: Alter) -> Entry:
    return msgspec.structs.replace(entry, event=alter(entry.event))


def _like(value: object, wanted: object) -> bool:
    if isinstance(value, str) and isinstance(wanted, str) and wanted:
        return value == wanted or value.startswith(f"{wanted}-")
    return value == wanted


def _messages(path: Path, stream: str) -> list[Stored]:
    async def read() -> list[Stored]:
        archive = ArchiveLog(path)
        try:
            return [stored async for stored in archive.read(stream)]
        finally:
            await archive.close()

    return asyncio.run(read())
