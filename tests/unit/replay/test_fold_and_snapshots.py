"""Folding to a point: equal from everywhere, and what does not match is discarded."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.daemon.support import SPACE, offer
from tests.unit.replay.writer import PROMPT, Records, altered, write_conversation

from kvferry.core import snapshot
from kvferry.core.digest import digest
from kvferry.core.state import State
from kvferry.errors import LedgerRefused
from kvferry.ledger.memory import MemoryLog
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.fold import fold_to
from kvferry.replay.snapshots import (
    CATALOGUE,
    SnapshotEntry,
    read_catalogue,
    thin,
    write_snapshot,
)
from kvferry.replay.status import summarize


async def stored_ms(log: MemoryLog, seq: int) -> int:
    return next(iter([one async for one in log.read(FACTS_STREAM, start=seq)])).stored_ms


async def test_every_point_is_the_same_from_a_snapshot_and_afresh() -> None:
    log = MemoryLog()
    last = await write_conversation(log)
    for cut in range(1, last + 1):
        state = await fold_to(log, to_seq=cut, from_snapshot=False)
        assert state.position == cut
        await write_snapshot(log, state, await stored_ms(log, cut), keep_max=2, first=1)
        for to in range(cut, last + 1):
            fresh = await fold_to(log, to_seq=to, from_snapshot=False)
            continued = await fold_to(log, to_seq=to)
            assert (digest(continued), continued.position) == (digest(fresh), to)


async def test_one_altered_event_is_another_digest() -> None:
    one, other = MemoryLog(), MemoryLog()
    event = offer("d0.1", PROMPT)
    for log, written in ((one, event), (other, altered(event))):
        records = Records(log)
        await records.join("d0")
        await records.write("d0", written)
    assert digest(await fold_to(one)) != digest(await fold_to(other))


async def test_a_time_is_the_servers_store_time() -> None:
    log = MemoryLog()
    last = await write_conversation(log)
    messages = [one async for one in log.read(FACTS_STREAM)]
    middle = messages[len(messages) // 2].stored_ms
    expected = max(one.seq for one in messages if one.stored_ms <= middle)
    assert (await fold_to(log, to_time_ms=middle)).position == expected
    assert (await fold_to(log, to_time_ms=messages[0].stored_ms - 1)).position == 0
    assert (await fold_to(log, to_seq=last + 100)).position == last
    told: list[tuple[int, int]] = []
    await fold_to(log, progress=lambda at, end: told.append((at, end)))
    assert told[-1] == (last, last)


@pytest.mark.parametrize("harm", ["gone", "bytes", "position", "fingerprint", "stored_ms", "list"])
async def test_a_snapshot_that_does_not_match_is_discarded(harm: str) -> None:
    log = MemoryLog()
    last = await write_conversation(log)
    wrong = State(position=4)
    entry = await write_snapshot(log, wrong, await stored_ms(log, 4), keep_max=2, first=1)
    assert (await fold_to(log, to_seq=4)).spaces == {}, "the seeded snapshot is what is loaded"
    if harm == "gone":
        await log.delete(entry.object)
    elif harm == "bytes":
        await log.put(entry.object, b"\x00" * 40)
    elif harm == "position":
        await log.put(entry.object, snapshot.encode(State(position=3)))
    elif harm == "list":
        await log.put(CATALOGUE, b"\xc1")
    else:
        changed = {"fingerprint": "0" * 16} if harm == "fingerprint" else {"stored_ms": 1}
        listed = (msgspec.structs.replace(entry, **changed),)
        await log.put(CATALOGUE, msgspec.msgpack.encode({"entries": listed}))
    found = await fold_to(log)
    assert digest(found) == digest(await fold_to(log, from_snapshot=False))
    assert found.position == last


async def test_a_stream_that_lost_its_beginning_is_continued_from_the_floor() -> None:
    log = MemoryLog()
    last = await write_conversation(log)
    whole = await fold_to(log, from_snapshot=False)
    state = await fold_to(log, to_seq=last - 2, from_snapshot=False)
    await write_snapshot(log, state, await stored_ms(log, last - 2), keep_max=4, first=1)
    stream = log._streams[FACTS_STREAM]
    while stream.first < last - 1:
        stream.messages.popleft()
    assert (await log.bounds(FACTS_STREAM)).first == last - 1
    for from_snapshot in (True, False):
        assert digest(await fold_to(log, from_snapshot=from_snapshot)) == digest(whole)
    with pytest.raises(LedgerRefused, match=f"begins at sequence {last - 1}"):
        await fold_to(log, to_seq=last - 4)


def entry(position: int) -> SnapshotEntry:
    return SnapshotEntry(
        position=position, stored_ms=1, digest="d", fingerprint="f", object=f"snapshot-{position}"
    )


def positions(entries: list[SnapshotEntry]) -> list[int]:
    return [one.position for one in entries]


def test_thinning_keeps_the_newest_the_floor_and_a_spread() -> None:
    ordered = [entry(n) for n in (1000, 900, 890, 500, 480, 100)]
    assert positions(thin(ordered, keep_max=4, first=1)) == [1000, 890, 500, 100]
    assert positions(thin(ordered, keep_max=2, first=1)) == [1000, 100]
    assert positions(thin(ordered, keep_max=8, first=481)) == [1000, 900, 890, 500, 480]
    assert positions(thin(ordered, keep_max=8, first=1001)) == [1000, 900], "two in any case"


async def test_the_list_of_snapshots_survives_many_writes() -> None:
    log = MemoryLog()
    last = await write_conversation(log)
    for cut in range(1, last + 1):
        state = await fold_to(log, to_seq=cut)
        await write_snapshot(log, state, await stored_ms(log, cut), keep_max=3, first=1)
    entries = (await read_catalogue(log)).entries
    assert entries[0].position == last
    assert entries[-1].position == 1
    assert len(entries) == 3


async def test_a_summary_is_json() -> None:
    log = MemoryLog()
    await write_conversation(log)
    document = summarize(await fold_to(log))
    assert msgspec.json.decode(msgspec.json.encode(document)) == document
    space = document["spaces"][SPACE]
    assert space["transfers"]["done"] == 1
    assert space["transfers"]["failed"] == 1
    assert {one["cause"] for one in space["misses"]} == {"too_dear", "diverged"}
    assert all(one["cure"] for one in space["misses"])
    assert space["offers"]["cache"] == {"offers": 1, "blocks": 64, "tokens": 1024}
    assert document["routers"]["turns"] == 1
