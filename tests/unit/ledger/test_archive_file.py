"""Exported files: what is written is read; what is damaged, cut off or newer is said."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from kvferry.errors import ConfigError, LedgerRefused
from kvferry.ledger.archive import writer as writer_module
from kvferry.ledger.archive.chunks import HEAD, HEADER_BYTES, MAGIC, pack, parse_header
from kvferry.ledger.archive.contents import FORMAT, Head, Range, encode
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ledger.archive.writer import writing
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, Stored, StreamBounds

FACTS = [Stored(seq, f"kvf.s.n{seq % 3}.facts", os.urandom(40), 1000 + seq) for seq in range(5, 65)]
BLOCKS = [Stored(seq, "kvf.s.n0.blocks", bytes([seq]) * 30, 1000 + seq) for seq in range(1, 9)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "CHUNK_BYTES", 1000)


def head() -> Head:
    ranges = {FACTS_STREAM: Range(5, 64), BLOCKS_STREAM: Range(1, 8)}
    return Head(writer="9.9", ranges=ranges)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.kvf"
    with writing(path, head()) as out:
        out.add_object("one", b"x" * 3000)
        for stored in FACTS:
            out.add(FACTS_STREAM, stored)
        for stored in BLOCKS:
            out.add(BLOCKS_STREAM, stored)
    return path


async def facts(path: Path, start: int = 1, subject: str = ">") -> list[Stored]:
    log = ArchiveLog(path)
    try:
        return [one async for one in log.read(FACTS_STREAM, start=start, subject=subject)]
    finally:
        await log.close()


async def test_what_is_written_is_read(path: Path) -> None:
    log = ArchiveLog(path)
    assert [one async for one in log.read(FACTS_STREAM)] == FACTS
    assert [one async for one in log.read(BLOCKS_STREAM)] == BLOCKS
    assert await log.get("one") == b"x" * 3000
    assert await log.get("two") is None
    assert await log.bounds(FACTS_STREAM) == StreamBounds(5, 64)
    assert await log.last_of_subject("kvf.s.n1.facts") == FACTS[-1]
    assert await log.last_of_subject("kvf.s.n7.facts") is None
    assert log.damages == []
    assert log.needs() == ""
    await log.close()


@pytest.mark.parametrize("start", [1, 5, 6, 33, 64, 65])
async def test_reading_begins_anywhere(path: Path, start: int) -> None:
    assert await facts(path, start) == [one for one in FACTS if one.seq >= start]


async def test_one_subject_is_read(path: Path) -> None:
    found = await facts(path, subject="kvf.*.n1.facts")
    assert found == [one for one in FACTS if one.subject == "kvf.s.n1.facts"]
    assert 0 < len(found) < len(FACTS)


async def test_it_is_not_written_to(path: Path) -> None:
    log = ArchiveLog(path)
    with pytest.raises(LedgerRefused, match="import it"):
        await log.append("kvf.s.n0.facts", b"", message_id="1")
    with pytest.raises(LedgerRefused, match="import it"):
        await log.append_many([])
    await log.close()


def chunk_offsets(path: Path) -> list[int]:
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        found.append(at)
        at += HEADER_BYTES + parse_header(data[at:]).packed_bytes
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("where", ["payload", "header"])
async def test_a_damaged_chunk_costs_only_what_is_in_it(path: Path, where: str) -> None:
    offset = chunk_offsets(path)[3]
    flip(path, offset + (HEADER_BYTES + 5 if where == "payload" else 7))
    log = ArchiveLog(path)
    found = [one async for one in log.read(FACTS_STREAM)]
    assert 0 < len(found) < len(FACTS)
    assert [one for one in FACTS if one in found] == found
    assert [one async for one in log.read(BLOCKS_STREAM)] == BLOCKS
    assert [damage.offset for damage in log.damages] == [offset]
    lost = [one.seq for one in FACTS if one not in found]
    if where == "payload":
        assert f"messages {lost[0]} to {lost[-1]} are lost" in log.damages[0].what
    else:
        assert "passed over" in log.damages[0].what
    # Read again, the same damage is told once.
    assert [one async for one in log.read(FACTS_STREAM)] == found
    assert len(log.damages) == 1
    await log.close()


async def test_a_file_that_was_cut_off_gives_what_it_has(path: Path) -> None:
    offset = chunk_offsets(path)[4]
    os.truncate(path, offset + HEADER_BYTES + 3)
    log = ArchiveLog(path)
    found = [one async for one in log.read(FACTS_STREAM)]
    assert found == FACTS[: len(found)]
    assert 0 < len(found) < len(FACTS)
    assert (await log.bounds(FACTS_STREAM)).last == found[-1].seq
    assert "is cut off" in log.damages[0].what
    assert "without its end mark" in log.damages[-1].what
    await log.close()


@pytest.mark.parametrize("data", [b"", b"hello", MAGIC, b"\0" * 5000])
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "b"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="not a file that `kvferry export` wrote"):
        ArchiveLog(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ArchiveLog(tmp_path / "c")


def test_a_newer_format_names_who_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "newer"
    path.write_bytes(pack(HEAD, encode(Head(format=FORMAT + 1, writer="7.1.0"))))
    with pytest.raises(ConfigError, match=r"use kvferry 7\.1\.0 or newer"):
        ArchiveLog(path)


def test_newer_events_are_named(tmp_path: Path) -> None:
    path = tmp_path / "events"
    schemas = {"requested": 999, "invented": 1, "produced": 1}
    with writing(path, msgspec.structs.replace(head(), schemas=schemas)):
        pass
    needs = ArchiveLog(path).needs()
    assert "invented version 1, requested version 999" in needs
    assert "kvferry 9.9 or newer" in needs
    assert "produced" not in needs


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d.kvf"

    def fail() -> None:
        with writing(path, head()) as out:
            out.add(FACTS_STREAM, FACTS[0])
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="cannot write"),
        writing(tmp_path / "missing" / "e.kvf", head()),
    ):
        pass
