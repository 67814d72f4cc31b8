"""A ledger through a file: the same state, the same stories; stripped; and back again."""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest
from tests.unit.cli.support import REQUEST, converse

from kvferry.core.digest import digest
from kvferry.core.events import SCHEMAS, AnyEvent, OpenTransfer
from kvferry.errors import LedgerRefused
from kvferry.ids import SHORT_BYTES
from kvferry.ledger.archive.contents import Range
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ledger.memory import MemoryLog
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM
from kvferry.replay.explain import explain
from kvferry.replay.exporting import export, import_into, whole
from kvferry.replay.fold import fold_to
from kvferry.replay.step import read_batch
from kvferry.replay.strip import EMPTIED, KEPT, RENAMED


@pytest.fixture
async def log() -> MemoryLog:
    log = MemoryLog()
    await converse(log)
    return log


async def exported(log: MemoryLog, path: Path, *, strip: bool = False) -> ArchiveLog:
    await export(log, path, await whole(log), strip=strip)
    return ArchiveLog(path)


async def events(log: MemoryLog | ArchiveLog, stream: str = FACTS_STREAM) -> list[AnyEvent]:
    batches = [read_batch(stored) async for stored in log.read(stream)]
    return [entry.event for batch in batches for entry in batch.entries]


async def test_a_file_has_the_ledgers_state_and_stories(log: MemoryLog, tmp_path: Path) -> None:
    archive = await exported(log, tmp_path / "all.kvf")
    assert digest(await fold_to(archive)) == digest(await fold_to(log))
    assert digest(await fold_to(archive, to_seq=4)) == digest(await fold_to(log, to_seq=4))
    assert digest(await fold_to(archive, to_seq=4)) != digest(await fold_to(log))
    assert await explain(archive, REQUEST) == await explain(log, REQUEST)
    assert [one async for one in archive.read(BLOCKS_STREAM)] == [
        one async for one in log.read(BLOCKS_STREAM)
    ]
    await archive.close()


async def test_a_part_knows_the_state_before_it(log: MemoryLog, tmp_path: Path) -> None:
    last = (await log.bounds(FACTS_STREAM)).last
    ranges = {FACTS_STREAM: Range(4, last), BLOCKS_STREAM: Range(1, 0)}
    done = await export(log, tmp_path / "part.kvf", ranges)
    assert done.state == "snapshot"
    assert done.messages == {FACTS_STREAM: last - 3, BLOCKS_STREAM: 0}
    archive = ArchiveLog(tmp_path / "part.kvf")
    assert digest(await fold_to(archive)) == digest(await fold_to(log))
    await archive.close()


async def test_stripped_ledgers_keep_their_shape_and_lose_their_names(
    log: MemoryLog, tmp_path: Path
) -> None:
    archive = await exported(log, tmp_path / "stripped.kvf", strip=True)
    before, after = await events(log), await events(archive)
    assert [type(event) for event in after] == [type(event) for event in before]
    data = b"".join([one.data async for one in archive.read(FACTS_STREAM)])
    raw = b"".join([one.data async for one in log.read(FACTS_STREAM)])
    for name in (b"chatcmpl", b"s-1\x00", bytes([8]) * SHORT_BYTES):
        assert name not in data
    assert b"chatcmpl" in raw
    assert bytes([8]) * SHORT_BYTES in raw
    # What was one request is one request still: its story has the same events.
    names = [getattr(event, "request", "") for event in before]
    new = getattr(after[names.index(REQUEST)], "request", "")
    assert new.startswith("r-")
    told, original = await explain(archive, new), await explain(log, REQUEST)
    assert [(item.seq, item.event) for item in told.items] == [
        (item.seq, item.event) for item in original.items
    ]
    assert told.transfers == original.transfers
    await archive.close()


async def test_two_stripped_exports_have_no_name_in_common(log: MemoryLog, tmp_path: Path) -> None:
    one = await exported(log, tmp_path / "one.kvf", strip=True)
    two = await exported(log, tmp_path / "two.kvf", strip=True)
    named = [
        {getattr(event, "request", "") for event in await events(archive)} - {""}
        for archive in (one, two)
    ]
    assert named[0]
    assert not named[0] & named[1]
    await one.close()
    await two.close()


async def test_the_state_before_a_stripped_part_is_stripped_too(
    log: MemoryLog, tmp_path: Path
) -> None:
    path = tmp_path / "part.kvf"
    ranges = await whole(log)
    last = ranges[FACTS_STREAM].last
    done = await export(log, path, ranges | {FACTS_STREAM: Range(5, last)}, strip=True)
    assert done.state == "snapshot"
    archive = ArchiveLog(path)
    state = await fold_to(archive)
    assert state.position == last
    assert b"chatcmpl" not in msgspec.msgpack.encode(state)
    assert b"chatcmpl" in msgspec.msgpack.encode(await fold_to(log))
    await archive.close()


async def test_a_file_is_imported_into_an_empty_ledger_only(log: MemoryLog, tmp_path: Path) -> None:
    archive = await exported(log, tmp_path / "all.kvf")
    empty = MemoryLog()
    done = await import_into(archive, empty)
    assert done.messages == {
        FACTS_STREAM: (await log.bounds(FACTS_STREAM)).last,
        BLOCKS_STREAM: (await log.bounds(BLOCKS_STREAM)).last,
    }
    assert await events(empty) == await events(log)
    with pytest.raises(LedgerRefused, match="import into an empty one"):
        await import_into(archive, empty)
    await archive.close()


def text_fields() -> set[str]:
    found: set[str] = set()
    for kind in [*(kind for _, kind in SCHEMAS.values()), OpenTransfer]:
        for field in msgspec.structs.fields(kind):
            if field.type is str or typing.get_args(field.type) == (str, ...):
                found.add(field.name)
    return found


def test_every_text_of_an_event_is_known_to_name_a_tenant_or_not() -> None:
    """A new field must be put into one of the three sets."""
    plain = {"options", "backends", "warnings", "unset"}
    assert text_fields() == set(RENAMED) | EMPTIED | KEPT | plain
    assert not set(RENAMED) & (EMPTIED | KEPT)
    assert not EMPTIED & KEPT
