"""Ranges, tails and filters of events, on a ledger in memory."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.unit.cli.support import REQUEST, SPACE, Writer, converse

from kvferry.cli import eventstream
from kvferry.cli.eventrecord import Record, Wanted, as_document, as_line
from kvferry.cli.eventstream import Range, last_records, read_ranges
from kvferry.cli.seek import end_seq, seq_at, start_seq
from kvferry.cli.times import Point
from kvferry.core.events import LinkProbed
from kvferry.ledger.memory import MemoryLog
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM

ALL = (Range(FACTS_STREAM, 1, None), Range(BLOCKS_STREAM, 1, None))


async def collect(log: MemoryLog, wanted: Wanted, *parts: Range) -> list[Record]:
    return [record async for record in read_ranges(log, parts, wanted)]


async def test_a_range_holds_what_lies_between_its_ends_and_no_more() -> None:
    log = MemoryLog()
    await converse(log)
    every = await collect(log, Wanted(), Range(FACTS_STREAM, 1, None))
    assert [one.kind for one in every][:4] == [
        "node_joined",
        "node_joined",
        "retained",
        "request_ended",
    ]
    some = await collect(log, Wanted(), Range(FACTS_STREAM, 3, 4))
    assert [one.kind for one in some] == ["retained", "request_ended"]
    assert await collect(log, Wanted(), Range(FACTS_STREAM, 5, 4)) == []


async def test_filters_choose_by_space_node_kind_and_request() -> None:
    log = MemoryLog()
    await converse(log)
    await Writer(log, "x0", space="other-space").join()

    async def kinds(wanted: Wanted) -> list[str]:
        return [one.kind for one in await collect(log, wanted, *ALL)]

    assert await kinds(Wanted(spaces=frozenset({"other-space"}))) == ["node_joined"]
    assert await kinds(Wanted(kinds=frozenset({"retained", "produced"}))) == [
        "retained",
        "produced",
    ]
    about_d0 = await kinds(Wanted(nodes=frozenset({"d0"})))
    assert about_d0.count("node_joined") == 1
    assert "transferred" in about_d0, "d0 is its source"
    assert await kinds(Wanted(request=REQUEST)) == [
        "requested",
        "pin_ended",
        "transferred",
        "request_ended",
        "produced",
    ]
    # A pin names its transfer only, which other kinds of events tell.
    assert await kinds(Wanted(request=REQUEST, kinds=frozenset({"pin_ended"}))) == ["pin_ended"]
    assert await kinds(Wanted(request="turn-2-p")) == await kinds(Wanted(request=REQUEST))
    assert await kinds(Wanted(request="turn")) == [], "too short to be looked for inside others"


async def test_an_undecodable_message_is_shown_whatever_the_filter() -> None:
    log = MemoryLog()
    seq = await log.append(f"kvf.{SPACE}.p0.facts", b"rubbish", message_id="x")
    (record,) = await collect(log, Wanted(kinds=frozenset({"retained"})), *ALL)
    assert as_document(record)["seq"] == seq
    assert as_document(record)["event"] == "undecodable"
    assert f"kvf.{SPACE}.p0.facts" in as_line(record)


async def test_a_document_is_stable_and_a_line_is_one_line() -> None:
    log = MemoryLog()
    await converse(log)
    for record in await collect(log, Wanted(), *ALL):
        document = as_document(record)
        assert list(document) == [
            "stream", "seq", "index", "time", "stored_ms", "subject", "event", "version",
            "space", "node", "incarnation", "epoch", "lane", "lane_seq", "cause", "wall_ms", "body",
        ]  # fmt: skip
        line = as_line(record)
        assert "\n" not in line
        assert str(record.stored.seq) in line
    seqs = [
        (d["lane"], d["node"], d["lane_seq"])
        for d in map(as_document, await collect(log, Wanted(), *ALL))
    ]
    assert len(set(seqs)) == len(seqs)


@pytest.mark.parametrize("window", [1, 2, 512])
async def test_a_tail_is_the_end_of_the_whole(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(eventstream, "WINDOW_MESSAGES", window)
    log = MemoryLog()
    await converse(log)
    whole = await collect(log, Wanted(), Range(FACTS_STREAM, 1, None))
    for count in (1, 3, len(whole), 99):
        assert await last_records(log, FACTS_STREAM, Wanted(), count) == whole[-count:]
    joins = Wanted(kinds=frozenset({"node_joined"}))
    assert await last_records(log, FACTS_STREAM, joins, 2) == whole[:2]
    assert await last_records(log, FACTS_STREAM, Wanted(), 2, last=2) == whole[:2]
    assert await last_records(MemoryLog(), FACTS_STREAM, Wanted(), 5) == []


async def test_following_two_streams_hands_over_what_comes() -> None:
    log = MemoryLog()
    writing = asyncio.create_task(converse(log))
    seen: list[str] = []
    async with asyncio.timeout(20), aclosing(read_ranges(log, ALL, Wanted(), follow=True)) as new:
        async for record in new:
            seen.append(record.kind)
            if "produced" in seen and seen.count("request_ended") == 3:
                break
    await writing


async def test_a_time_finds_the_first_message_stored_from_then_on() -> None:
    log = MemoryLog()
    p = Writer(log, "p0")
    for _ in range(6):
        await p.write(LinkProbed(peer="d0", backend="tcp", gb_per_s=1.0, floor_ms=0.1))
        await asyncio.sleep(0.004)
    stored = [one.stored async for one in read_ranges(log, ALL[:1], Wanted())]
    for one in stored:
        first = next(other for other in stored if other.stored_ms >= one.stored_ms)
        assert await seq_at(log, FACTS_STREAM, one.stored_ms) == first.seq
    last = stored[-1]
    assert await seq_at(log, FACTS_STREAM, 0) == 1
    assert await seq_at(log, FACTS_STREAM, last.stored_ms + 1) == last.seq + 1
    assert await end_seq(log, FACTS_STREAM, Point(time_ms=last.stored_ms)) == last.seq
    assert await end_seq(log, FACTS_STREAM, Point(time_ms=0)) == 0
    assert await start_seq(log, FACTS_STREAM, Point(seq=3)) == 3
    assert await seq_at(MemoryLog(), FACTS_STREAM, 5) == 1
