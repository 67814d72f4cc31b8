"""What every log promises, on the one in memory and on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
from tests.unit.ledger.support import eventually, read_all, take, within

from kvferry.errors import LedgerRefused, LedgerUnavailable, WrongLastSequence
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import blocks_subject, coord_subject, facts_subject
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, Reply, StreamBounds

Log = MemoryLog | JetStreamLedger
FACTS = facts_subject("s", "p0")
BLOCKS = blocks_subject("s", "p0")
COORD = coord_subject("s")


async def test_appended_messages_are_read_in_order_with_their_places(log: Log) -> None:
    first = await log.append(FACTS, b"one", message_id="1")
    second = await log.append(COORD, b"two", message_id="2")
    assert (first, second) == (1, 2)
    stored = await read_all(log, FACTS_STREAM)
    assert [(m.seq, m.subject, m.data) for m in stored] == [(1, FACTS, b"one"), (2, COORD, b"two")]
    assert stored[0].stored_ms > 1_600_000_000_000
    assert await log.bounds(FACTS_STREAM) == StreamBounds(1, 2)
    assert await log.bounds(BLOCKS_STREAM) == StreamBounds(1, 0)


async def test_the_same_id_is_stored_once(log: Log) -> None:
    assert await log.append(FACTS, b"one", message_id="1") == 1
    assert await log.append(FACTS, b"one", message_id="1") == 1
    await log.append_many([(FACTS, b"one", "1"), (FACTS, b"two", "2"), (FACTS, b"two", "2")])
    assert [m.data for m in await read_all(log, FACTS_STREAM)] == [b"one", b"two"]


async def test_only_one_of_two_writers_with_one_expectation_wins(log: Log) -> None:
    assert await log.append(COORD, b"a", message_id="a", expected_last=0) == 1
    with pytest.raises(WrongLastSequence):
        await log.append(COORD, b"b", message_id="b", expected_last=0)
    await log.append(FACTS, b"between", message_id="f")
    assert await log.append(COORD, b"c", message_id="c", expected_last=1) == 3
    assert [m.data for m in await read_all(log, FACTS_STREAM, subject=COORD)] == [b"a", b"c"]


async def test_an_expected_append_repeated_finds_itself(log: Log) -> None:
    assert await log.append(COORD, b"a", message_id="a", expected_last=0) == 1
    assert await log.append(COORD, b"b", message_id="b", expected_last=1) == 2
    assert await log.append(COORD, b"a", message_id="a", expected_last=0) == 1
    assert await log.append(COORD, b"b", message_id="b", expected_last=1) == 2
    assert await log.bounds(FACTS_STREAM) == StreamBounds(1, 2)


async def test_many_messages_keep_their_order(log: Log) -> None:
    batch = [(FACTS, b"%d" % i, f"m{i}") for i in range(2000)]
    await log.append_many(batch)
    assert [m.data for m in await read_all(log, FACTS_STREAM)] == [data for _, data, _ in batch]


async def test_two_appends_at_once_keep_the_order_of_each(log: Log) -> None:
    facts = [(FACTS, b"%d" % i, f"f{i}") for i in range(600)]
    blocks = [(BLOCKS, b"%d" % i, f"b{i}") for i in range(600)]
    await asyncio.gather(log.append_many(facts), log.append_many(blocks))
    assert [m.data for m in await read_all(log, FACTS_STREAM)] == [d for _, d, _ in facts]
    assert [m.data for m in await read_all(log, BLOCKS_STREAM)] == [d for _, d, _ in blocks]


async def test_read_begins_where_asked_and_ends_at_the_end_as_of_the_call(log: Log) -> None:
    await log.append_many([(FACTS, b"%d" % i, f"m{i}") for i in range(10)])
    assert [m.seq for m in await read_all(log, FACTS_STREAM, start=8)] == [8, 9, 10]
    assert await read_all(log, FACTS_STREAM, start=11) == []
    assert await read_all(log, BLOCKS_STREAM) == []
    assert await read_all(log, FACTS_STREAM, subject=COORD) == []


async def test_following_sees_what_comes_later(log: Log) -> None:
    await log.append(FACTS, b"0", message_id="0")
    reading = asyncio.create_task(take(log, FACTS_STREAM, 3))
    await log.append(FACTS, b"1", message_id="1")
    await log.append(COORD, b"2", message_id="2")
    assert [m.data for m in await within(reading)] == [b"0", b"1", b"2"]


async def test_following_with_a_subject_skips_the_rest(log: Log) -> None:
    other = facts_subject("s", "d0")
    reading = asyncio.create_task(take(log, FACTS_STREAM, 2, subject=other))
    for i in range(4):
        await log.append((FACTS, other)[i % 2], b"%d" % i, message_id=str(i))
    assert [(m.seq, m.data) for m in await within(reading)] == [(2, b"1"), (4, b"3")]


async def test_following_ends_when_the_log_is_closed(log: Log) -> None:
    await log.append(FACTS, b"0", message_id="0")
    seen = []

    async def follow() -> None:
        async with aclosing(log.read(FACTS_STREAM, follow=True)) as messages:
            async for stored in messages:
                seen.append(stored.seq)

    reading = asyncio.create_task(follow())
    await eventually(lambda: seen == [1], "the first message")
    await within(log.close())
    await within(reading)
    with pytest.raises(LedgerUnavailable):
        await log.append(FACTS, b"1", message_id="1")


async def test_last_of_a_subject(log: Log) -> None:
    assert await log.last_of_subject(COORD) is None
    await log.append(COORD, b"a", message_id="a")
    await log.append(COORD, b"b", message_id="b")
    await log.append(FACTS, b"c", message_id="c")
    last = await log.last_of_subject(COORD)
    assert last is not None
    assert (last.seq, last.subject, last.data) == (2, COORD, b"b")
    assert last == (await read_all(log, FACTS_STREAM, start=2))[0]


async def test_request_and_reply(log: Log) -> None:
    async def answer(subject: str, data: bytes, reply: Reply | None) -> None:
        assert reply is not None
        await reply(subject.encode() + b" " + data)

    stop = await log.subscribe("kvfbus.plan.*", answer)
    assert await log.request("kvfbus.plan.r1", b"hi", 5.0) == b"kvfbus.plan.r1 hi"
    await stop()
    with pytest.raises(LedgerUnavailable, match="nobody listens"):
        await log.request("kvfbus.plan.r1", b"hi", 5.0)


async def test_request_without_answer_ends_in_time(log: Log) -> None:
    async def silent(subject: str, data: bytes, reply: Reply | None) -> None: ...

    stop = await log.subscribe("kvfbus.silent", silent)
    with pytest.raises(LedgerUnavailable, match=r"within 0\.05 s"):
        await log.request("kvfbus.silent", b"", 0.05)
    await stop()


async def test_a_failing_handler_gets_the_next_message_too(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    async def fragile(subject: str, data: bytes, reply: Reply | None) -> None:
        seen.append(data)
        if data == b"bad":
            raise ValueError("bad")

    stop = await log.subscribe("kvfbus.>", fragile)
    for data in (b"bad", b"good"):
        await log.publish("kvfbus.x", data)
    await eventually(lambda: seen == [b"bad", b"good"], "both messages")
    assert "ValueError: bad" in caplog.text
    await stop()


async def test_a_handler_may_stop_itself(log: Log) -> None:
    seen: list[bytes] = []
    stops: list[Callable[[], Awaitable[None]]] = []

    async def once(subject: str, data: bytes, reply: Reply | None) -> None:
        seen.append(data)
        await stops[0]()

    stops.append(await log.subscribe("kvfbus.once", once))
    await log.publish("kvfbus.once", b"1")
    await eventually(lambda: seen == [b"1"], "the message")
    await log.publish("kvfbus.once", b"2")
    with pytest.raises(LedgerUnavailable):
        await log.request("kvfbus.once", b"3", 1.0)
    assert seen == [b"1"]


@pytest.mark.parametrize("size", [0, 1, 128 * 1024, 3_000_001])
async def test_objects_are_put_got_replaced_and_deleted(log: Log, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert await log.get("snap/1") is None
    await log.put("snap/1", data)
    assert await log.get("snap/1") == data
    assert await log.get("snap/1") != data + b"x"
    await log.put("snap/1", b"new")
    assert await log.get("snap/1") == b"new"
    await log.delete("snap/1")
    await log.delete("snap/1")
    assert await log.get("snap/1") is None


async def test_a_stream_that_is_not_there_is_refused(log: Log) -> None:
    with pytest.raises(LedgerRefused, match="no stream OTHER"):
        await log.bounds("OTHER")
    with pytest.raises(LedgerRefused, match="no stream OTHER"):
        await read_all(log, "OTHER")


async def test_connected_until_closed(log: Log) -> None:
    assert log.connected()
    await log.close()
    assert not log.connected()
