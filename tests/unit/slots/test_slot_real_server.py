"""Leases over a real nats-server, with coordinators in processes that are killed and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.daemon.support import BOUND_S, until
from tests.unit.slots.support import node

from kvferry.core.messages import encode
from kvferry.core.slots_messages import AcquireSlot, SlotAnswer, slots_subject
from kvferry.errors import LedgerUnavailable, SlotError, SlotsBusy
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.codec import decode
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ledger.subjects import coord_subject
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.slots import SlotClient, SlotTiming
from kvferry.ports.log import FACTS_STREAM

ROOT = Path(__file__).parents[3]
PATIENT = SlotTiming(ask_within_s=30.0, end_within_s=30.0)


def start(module: str, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *args],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )


@asynccontextmanager
async def process(module: str, *args: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    one = start(module, *args)
    try:
        yield one
    finally:
        if one.poll() is None:
            one.kill()
        await asyncio.to_thread(one.wait, 10)


def coordinator(url: str, replica: str) -> Any:
    return process("tests.unit.daemon.coordinator_process", url, replica)


@asynccontextmanager
async def router(url: str, name: str) -> AsyncIterator[SlotClient]:
    client = SlotClient(NodeSettings(nats_url=url, node=name), "a", timing=PATIENT)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def leads(client: SlotClient, replica: str) -> None:
    await until(lambda: client._asking.leader() == replica, f"{replica} leads")


async def leases(ledger: JetStreamLedger) -> list[tuple[str, str, int]]:
    """(replica, change, fence) of all leases in the ledger."""
    found = []
    async for stored in ledger.read(FACTS_STREAM, subject=coord_subject(ROUTER_SPACE)):
        batch = decode(stored.data)
        found += [
            (batch.node, entry.event.change, entry.event.fence)
            for entry in batch.entries
            if getattr(entry.event, "fence", 0)
        ]
    return found


async def test_a_leader_killed_before_its_answer_has_lent_and_the_next_one_says_so(
    server: EmbeddedServer, ledger: JetStreamLedger
) -> None:
    deadly = process("tests.unit.slots.dying_coordinator", server.url, "c-first")
    async with deadly as first, router(server.url, "r0") as one, router(server.url, "r1") as two:
        await leads(one, "c-first")
        await one.register([node("t0")])
        asked = asyncio.create_task(one.acquire(["t0"], "a"))
        await asyncio.to_thread(first.wait, 20)
        assert first.returncode == -signal.SIGKILL
        async with coordinator(server.url, "c-second"):
            slot = await asked
            assert (slot.fence, slot.sure()) == (1, True)
            with pytest.raises(SlotsBusy, match="request a of router"):
                await two.acquire(["t0"], "b")
            await one.confirm(slot)
            await one.end(slot, "replied")
            other = await two.acquire(["t0"], "b")
            await two.end(other, "replied")
    assert await leases(ledger) == [
        ("c-first", "granted", 1),
        ("c-second", "confirmed", 1),
        ("c-second", "replied", 1),
        ("c-second", "granted", 2),
        ("c-second", "replied", 2),
    ]


async def test_a_leader_that_stood_still_lends_nothing_when_it_wakes(
    server: EmbeddedServer, ledger: JetStreamLedger
) -> None:
    async with coordinator(server.url, "c-first") as first, router(server.url, "r0") as slots:
        await leads(slots, "c-first")
        await slots.register([node("t0"), node("t1")])
        held = await slots.acquire(["t0"], "a")
        async with coordinator(server.url, "c-second"):
            os.kill(first.pid, signal.SIGSTOP)
            await leads(slots, "c-second")
            await slots.confirm(held)
            # What was asked of it while it stood still reaches it when it wakes.
            late = AcquireSlot(holder="r9.a", number=1, request="z", candidates=("t1",))
            stale = asyncio.create_task(
                ledger.request(slots_subject("c-first"), encode(late), BOUND_S)
            )
            other = await slots.acquire(["t1"], "b")
            os.kill(first.pid, signal.SIGCONT)
            try:
                answer = msgspec.msgpack.decode(await stale, type=SlotAnswer)
                assert answer.verdict in ("not_leader", "unavailable")
            except LedgerUnavailable:
                pass  # Its connection had been given up: nobody heard it at all.
            await slots.end(held, "replied")
            await slots.end(other, "replied")
    given = await leases(ledger)
    assert [one for one in given if one[1] == "granted"] == [
        ("c-first", "granted", 1),
        ("c-second", "granted", 2),
    ]
    assert ("c-second", "replied", 1) in given
    assert ("c-second", "replied", 2) in given


async def test_two_routers_under_leaders_that_come_and_go(
    server: EmbeddedServer, ledger: JetStreamLedger
) -> None:
    """Whatever happens to coordinators, a node is never with two requests at once."""
    holders: dict[str, str] = {}
    done = 0

    async def work(slots: SlotClient, mine: str) -> None:
        nonlocal done
        for number in range(15):
            try:
                slot = await slots.acquire(["t0", "t1"], f"q{number}")
            except SlotsBusy as busy:
                await slots.freed(min(0.2, busy.retry_after_s))
                continue
            except SlotError:
                continue
            assert slot.sure()
            assert holders.get(slot.node.name, "") == "", "nobody else has it"
            holders[slot.node.name] = mine
            await slots.confirm(slot)
            await asyncio.sleep(0.01)
            assert holders[slot.node.name] == mine
            holders[slot.node.name] = ""
            await slots.end(slot, "replied")
            done += 1

    async with router(server.url, "r0") as one, router(server.url, "r1") as two:
        both = ((one, "r0"), (two, "r1"))
        async with coordinator(server.url, "c-1") as first:
            await leads(one, "c-1")
            await one.register([node("t0"), node("t1")])
            async with coordinator(server.url, "c-2"):
                tasks = [asyncio.create_task(work(each, name)) for each, name in both]
                await until(lambda: done >= 4, "some leases ended")
                first.kill()
                await asyncio.gather(*tasks)
    assert done >= 6
    fences = [fence for _, change, fence in await leases(ledger) if change == "granted"]
    assert fences == list(range(1, len(fences) + 1))


async def kvferry(*arguments: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    command = [sys.executable, "-m", "kvferry.cli", *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


async def test_an_operator_sees_and_drains_a_node(
    server: EmbeddedServer, ledger: JetStreamLedger
) -> None:
    async with coordinator(server.url, "c-1"), router(server.url, "r0") as slots:
        await leads(slots, "c-1")
        await slots.register([node("t0")])
        slot = await slots.acquire(["t0"], "a")
        at = ("--nats", server.url)
        (drained, status, unknown) = await asyncio.gather(
            kvferry("drain", "t0", *at), kvferry("status", *at), kvferry("drain", "t9", *at)
        )
        assert drained[0] == 0, drained[1]
        assert "decode node t0 is drained: request a of router r0.a, since" in drained[1]
        assert "request a of router r0.a, since" in status[1]
        assert unknown[0] == 1
        assert "no decode node t9 is known; known: t0" in unknown[1]
        await slots.end(slot, "replied")
        (undrained, events, explained) = await asyncio.gather(
            kvferry("undrain", "t0", *at),
            kvferry("events", "--kind", "slot_changed", *at),
            kvferry("explain", "a", *at),
        )
        assert "decode node t0 is in the pool: nobody; the last lease: replied" in undrained[1]
        assert "slot of t0, fence 1: lent to router r0.a for request a" in events[1]
        assert "it was lent decode node t0" in explained[1]
        assert "decode had replied" in explained[1]
