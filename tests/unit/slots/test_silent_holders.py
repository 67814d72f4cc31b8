"""A lease whose holder fell silent ends after TileRT's own limit, and when the node is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.daemon.support import running, until
from tests.unit.slots.support import (
    LIMIT_MS,
    DecodeServer,
    changes,
    link_of,
    node,
    router,
    slot_of,
    told,
)

from kvferry.daemon.slot_status import decode_status
from kvferry.errors import SlotsBusy, SlotsUnavailable
from kvferry.ledger.memory import MemoryLog


@pytest.fixture
async def decode() -> AsyncIterator[DecodeServer]:
    async with DecodeServer().running() as server:
        yield server


async def test_a_silent_holders_lease_ends_once_the_node_is_idle(decode: DecodeServer) -> None:
    log = MemoryLog()
    decode.status = "busy"
    async with running(log) as coordinator, router(log, "r0") as gone, router(log, "r1") as other:
        loop = asyncio.get_running_loop()
        await other.register([node("t0", decode.url, idle_limit_ms=LIMIT_MS)])
        begun = loop.time()
        await gone.acquire(["t0"], "a")
        link_of(gone).cut = True
        await until(lambda: decode.asked, "the limit is over, so the node is asked")
        assert loop.time() - begun >= LIMIT_MS / 1000, "not before TileRT's own limit"
        said = coordinator.slot_timers.said
        await until(lambda: said.get("t0") == "busy", "it says that it is busy")
        with pytest.raises(SlotsBusy):
            await other.acquire(["t0"], "b")
        assert slot_of(coordinator).phase == "granted", "our own deadline alone ends nothing"
        decode.status = "idle"
        await until(lambda: slot_of(coordinator).phase == "free", "the node is idle")
        assert (await other.acquire(["t0"], "b")).fence == 2
        ends = [one for one in await changes(log) if one.change == "idle"]
        assert [(one.fence, one.holder, one.request) for one in ends] == [(1, "r0.a", "a")]
        assert ends[0].why.startswith("nothing was heard for ")


async def test_a_living_holder_keeps_its_lease_though_the_node_is_idle(
    decode: DecodeServer,
) -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log, "r0") as lives, router(log, "r1") as gone:
        # Its own part of the limit is long, so that a stall of this machine is no silence.
        nodes = [node("t0", decode.url, idle_limit_ms=3_000), node("t1", idle_limit_ms=LIMIT_MS)]
        await lives.register(nodes)
        kept = await lives.acquire(["t0"], "a")
        left = await gone.acquire(["t1"], "b")
        link_of(gone).cut = True
        said = coordinator.slot_timers.said
        await until(lambda: said.get("t1") == "unreachable", "the silent one's node is asked")
        await until(lambda: not left.sure(), "the silent one knows that it may not act")
        await asyncio.sleep(3.5)
        assert slot_of(coordinator, "t0").phase == "granted"
        assert slot_of(coordinator, "t1").phase == "granted", "nobody says that the node is idle"
        assert not [one for one in await told(log) if one[0] == "idle"]
        await lives.confirm(kept)


async def test_an_abandoned_lease_ends_like_a_silent_one(decode: DecodeServer) -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log) as slots:
        await slots.register([node("t0", decode.url, idle_limit_ms=LIMIT_MS)])
        slot = await slots.acquire(["t0"], "a")
        await slots.confirm(slot)
        await slots.abandon(slot, "the connection broke")
        assert decode.asked == 0
        with pytest.raises(SlotsUnavailable, match="must first be seen idle"):
            await slots.acquire(["t0"], "b")
        while slot_of(coordinator).last != "idle":
            assert await slots.freed(20.0), "the coordinator says which nodes became free"
        assert decode.asked > 0


async def test_a_new_leader_gives_every_lease_its_full_time_again(decode: DecodeServer) -> None:
    log = MemoryLog()
    loop = asyncio.get_running_loop()
    async with running(log, replica="c-a"), router(log) as slots:
        await slots.register([node("t0", decode.url, idle_limit_ms=LIMIT_MS)])
        await slots.acquire(["t0"], "a")
        slots._leases.held.clear()  # A killed process says no good-bye.
    async with running(log, replica="c-b") as second:
        # Most of the limit passes while nobody leads.
        await until(lambda: second.projector.level.is_set(), "it has read the ledger")
        assert slot_of(second).phase == "granted", "it knows the lease from the ledger"
        began = loop.time()
        await until(lambda: slot_of(second).phase == "free", "the node is idle")
        assert loop.time() - began >= LIMIT_MS / 1000
        assert slot_of(second).last == "idle"


async def test_what_a_decode_server_says(decode: DecodeServer) -> None:
    assert await decode_status(decode.url, 5.0) == "idle"
    assert await decode_status(f"{decode.url}/", 5.0) == "idle"
    decode.status = "busy"
    assert await decode_status(decode.url, 5.0) == "busy"
    decode.status = "thinking"
    assert await decode_status(decode.url, 5.0) == "unreachable"
    assert await decode_status("http://127.0.0.1:9", 5.0) == "unreachable"
    assert await decode_status("no url", 5.0) == "unreachable"
