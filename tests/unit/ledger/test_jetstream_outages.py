"""A real server that is killed, frozen or emptied under a ledger in use."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from tests.unit.ledger.support import WAIT_S, RawServer, eventually, read_all, take, within

from kvferry.errors import LedgerRefused, LedgerUnavailable
from kvferry.ledger import append, consumer, embedded, jsapi, life, link
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ledger.subjects import facts_subject
from kvferry.ports.log import FACTS_STREAM, Reply, Stored

FACTS = facts_subject("s", "p0")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of production are for slow networks; these tests need not sit them out."""
    monkeypatch.setattr(link, "PROBE_EVERY_S", 0.3)
    monkeypatch.setattr(link, "PONG_WAIT_S", 0.7)
    monkeypatch.setattr(link, "BACKOFF_MAX_S", 0.3)
    monkeypatch.setattr(append, "ACK_WAIT_S", 0.5)
    monkeypatch.setattr(consumer, "SILENCE_MAX_S", 1.5)
    monkeypatch.setattr(embedded, "WATCH_EVERY_S", 0.1)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[JetStreamLedger]:
    ledger = await connect(url, name="test")
    try:
        await ledger.ensure_streams()
        yield ledger
    finally:
        await within(ledger.close())


def messages(count: int, size: int = 200) -> list[tuple[str, bytes, str]]:
    return [(FACTS, b"%06d" % i + bytes(size), f"m{i}") for i in range(count)]


async def test_killed_under_load_nothing_acknowledged_is_lost_and_order_is_kept(
    server: EmbeddedServer,
) -> None:
    wanted = messages(12_000)
    async with opened(server.url) as ledger:
        seen: list[bytes] = []

        async def follow() -> None:
            async for stored in ledger.read(FACTS_STREAM, follow=True):
                seen.append(stored.data)
                if len(seen) == len(wanted):
                    return

        reading = asyncio.create_task(follow())
        writing = asyncio.create_task(ledger.append_many(wanted))
        for kills in (1, 2):
            await eventually(lambda kills=kills: len(seen) > kills * 2000, "progress")  # type: ignore[misc]
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await eventually(lambda kills=kills: server.restarts >= kills, "the restart")  # type: ignore[misc]
        await within(writing)
        await within(reading)
        assert seen == [data for _, data, _ in wanted]
        assert [m.data for m in await read_all(ledger, FACTS_STREAM)] == seen


@pytest.mark.parametrize("cure", ["goes on", "is replaced"])
async def test_a_hung_server_loses_and_doubles_nothing(raw_server: RawServer, cure: str) -> None:
    wanted = messages(400, size=60_000)  # more than a socket's buffers hold
    async with opened(raw_server.url) as ledger:
        await ledger.append_many(wanted[:50])
        raw_server.send(signal.SIGSTOP)
        writing = asyncio.create_task(ledger.append_many(wanted[50:]))
        await eventually(lambda: not ledger.connected(), "the silence is noticed")
        assert not writing.done()
        if cure == "goes on":
            raw_server.send(signal.SIGCONT)
        else:
            raw_server.kill()
            raw_server.start()
        await within(writing)
        stored = await read_all(ledger, FACTS_STREAM)
        assert [m.data for m in stored] == [data for _, data, _ in wanted]


async def test_appends_fail_in_time_while_the_server_is_gone_and_work_again_after(
    raw_server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(raw_server.url) as ledger:
        await ledger.append(FACTS, b"0", message_id="0")
        raw_server.kill()
        with monkeypatch.context() as hasty:
            hasty.setattr(append, "STALL_MAX_S", 0.6)
            hasty.setattr(jsapi, "CALL_WAIT_S", 0.6)
            with pytest.raises(LedgerUnavailable, match=raw_server.url):
                await within(ledger.append(FACTS, b"1", message_id="1"))
            with pytest.raises(LedgerUnavailable, match="not connected"):
                await within(ledger.bounds(FACTS_STREAM))
        with pytest.raises(LedgerUnavailable):
            await within(ledger.publish("kvfbus.x", b""))
        raw_server.start()
        await eventually(ledger.connected, "the connection is back")
        await within(ledger.append(FACTS, b"1", message_id="1"))
        assert [m.data for m in await read_all(ledger, FACTS_STREAM)] == [b"0", b"1"]


async def test_subscriptions_last_across_a_restart(raw_server: RawServer) -> None:
    async def answer(subject: str, data: bytes, reply: Reply | None) -> None:
        assert reply is not None
        await reply(data)

    async with opened(raw_server.url) as ledger:
        stop = await ledger.subscribe("kvfbus.echo", answer)
        raw_server.kill()
        await eventually(lambda: not ledger.connected(), "the loss is noticed")
        raw_server.start()
        await eventually(ledger.connected, "the connection is back")
        assert await ledger.request("kvfbus.echo", b"hi", WAIT_S) == b"hi"
        await stop()


async def test_a_deleted_consumer_is_replaced_without_a_hole(raw_server: RawServer) -> None:
    async with opened(raw_server.url) as ledger:
        await ledger.append_many(messages(100))
        reading = asyncio.create_task(take(ledger, FACTS_STREAM, 200))
        deleted = 0
        while not deleted:
            names = (await ledger._api.call(f"CONSUMER.NAMES.{FACTS_STREAM}"))["consumers"]
            for name in names or ():
                await ledger._api.call(f"CONSUMER.DELETE.{FACTS_STREAM}.{name}")
                deleted += 1
        await ledger.append_many(messages(200))
        assert [m.seq for m in await within(reading)] == list(range(1, 201))


async def test_a_delivery_lost_on_the_way_is_noticed_and_read_again(
    raw_server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = consumer.Consumer._on_message
    dropped: list[str] = []

    def lossy(self: consumer.Consumer, message: Msg) -> None:
        if ".70.70." in message.reply and not dropped:
            dropped.append(message.reply)
            return
        arrived(self, message)

    monkeypatch.setattr(consumer.Consumer, "_on_message", lossy)
    async with opened(raw_server.url) as ledger:
        await ledger.append_many(messages(100))
        assert [m.seq for m in await read_all(ledger, FACTS_STREAM)] == list(range(1, 101))
        dropped.clear()
        assert [m.seq for m in await take(ledger, FACTS_STREAM, 100)] == list(range(1, 101))
        assert dropped


async def test_messages_that_the_client_dropped_are_read_again(
    raw_server: RawServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kvferry.ledger")
    async with opened(raw_server.url) as ledger:
        await ledger.append_many(messages(150))
        monkeypatch.setattr(life, "LISTEN_MESSAGES_MAX", 64)
        assert [m.seq for m in await read_all(ledger, FACTS_STREAM)] == list(range(1, 151))
    assert "could not keep up" in caplog.text
    assert "lost on the way" in caplog.text


async def test_a_read_that_is_cut_short_says_so(
    raw_server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "BATCH_MESSAGES", 10)
    async with opened(raw_server.url) as ledger:
        await ledger.append_many(messages(100))
        reading = ledger.read(FACTS_STREAM)
        assert (await anext(reading)).seq == 1
        await ledger.close()
        with pytest.raises(LedgerUnavailable):
            await within(_exhaust(reading))


async def _exhaust(reading: AsyncIterator[Stored]) -> None:
    async for _ in reading:
        pass


async def test_reading_begins_at_the_first_message_that_is_left(raw_server: RawServer) -> None:
    async with opened(raw_server.url) as ledger:
        await ledger.ensure_streams(facts_max_bytes=64 * 1024)
        await ledger.append_many(messages(2000))
        bounds = await ledger.bounds(FACTS_STREAM)
        assert 1 < bounds.first < bounds.last == 2000
        seqs = [m.seq for m in await read_all(ledger, FACTS_STREAM)]
        assert seqs == list(range(bounds.first, 2001))
        assert (await take(ledger, FACTS_STREAM, 1))[0].seq == bounds.first


async def test_a_store_that_was_emptied_is_not_read_on_as_if_nothing_were(
    raw_server: RawServer, tmp_path: Path
) -> None:
    async with opened(raw_server.url) as ledger:
        await ledger.append_many(messages(10))
        seen: list[int] = []

        async def follow() -> None:
            async for stored in ledger.read(FACTS_STREAM, follow=True):
                seen.append(stored.seq)

        reading = asyncio.create_task(follow())
        await eventually(lambda: len(seen) == 10, "all ten")
        raw_server.kill()
        await eventually(lambda: not ledger.connected(), "the loss is noticed")
        shutil.rmtree(tmp_path / "js")
        raw_server.start()
        await eventually(ledger.connected, "the connection is back")
        await ledger.ensure_streams()
        with pytest.raises(LedgerRefused, match=r"reset or rolled back|no stream KVF"):
            await within(reading)


async def test_nothing_is_left_behind_after_close(raw_server: RawServer) -> None:
    def sockets() -> int:
        links = (os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        return sum(target.startswith("socket:") for target in links)

    def count() -> int:
        try:
            return sockets()
        except FileNotFoundError:  # a descriptor that was closed while we looked
            return -1

    before = count()
    for how in ("clean", "hung"):
        async with opened(raw_server.url) as ledger:
            await ledger.append_many(messages(50))
            if how == "hung":
                raw_server.send(signal.SIGSTOP)
                writing = asyncio.create_task(ledger.append_many(messages(400, size=60_000)))
                await eventually(lambda: not ledger.connected(), "the silence is noticed")
                await within(ledger.close())
                with pytest.raises(LedgerUnavailable):
                    await within(writing)
                raw_server.send(signal.SIGCONT)
        await eventually(lambda: len(asyncio.all_tasks()) == 1, "no task but ours")
        await eventually(lambda: count() == before, "no socket but ours")
