"""Against a real nats-server and real processes: replay elsewhere, kill, restart, outage."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.daemon.support import (
    BOUND_S,
    SPACE,
    FakeNode,
    ask,
    chain,
    offer,
    plan,
    plan_request,
    running,
    settled,
    until,
)
from tests.unit.replay.writer import Records, altered, write_conversation

from kvferry.core.messages import ANNOUNCE_SUBJECT
from kvferry.core.state import JOINED
from kvferry.daemon.messages import Query, decode_answer, encode_query
from kvferry.errors import KVFerryError
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ports.log import FACTS_STREAM, Reply
from kvferry.replay.snapshots import read_catalogue

ROOT = Path(__file__).parents[3]
PROMPT = chain("talk", 64)


def start(module: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *args],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def fold_elsewhere(url: str, to_seq: int, how: str) -> dict[str, Any]:
    process = start("tests.unit.replay.fold_process", url, str(to_seq), how)
    out, err = await asyncio.to_thread(process.communicate, None, 60)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


async def test_another_process_folds_to_the_live_digest(
    server: EmbeddedServer, ledger: JetStreamLedger
) -> None:
    await write_conversation(ledger)
    async with running(ledger, silent_after_s=60.0) as coordinator:
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        await ask(ledger, coordinator, verb="pause", space=SPACE)
        assert await coordinator.checkpoints.write() is not None
        records = Records(ledger)
        await records.join("d7")
        last = await records.write("d7", offer("d7.1", PROMPT))
        live = await ask(ledger, coordinator, verb="digest", position=last)
        at = live["position"]
        afresh, continued = await asyncio.gather(
            fold_elsewhere(server.url, at, "afresh"), fold_elsewhere(server.url, at, "snapshot")
        )
        assert afresh == continued == {"position": at, "digest": live["digest"]}
        # The comparison has teeth: one event with one block less is another digest.
        await records.write("d7", altered(offer("d7.2", PROMPT)))
        await settled(coordinator, at + 1)
        assert (await ask(ledger, coordinator, verb="digest"))["digest"] != live["digest"]


async def test_killed_under_appends_and_started_again_it_comes_to_the_same_state(
    server: EmbeddedServer, ledger: JetStreamLedger
) -> None:
    d0 = FakeNode(ledger, "d0")
    await d0.join()
    heard: set[str] = set()

    async def on_announce(subject: str, data: bytes, reply: Reply | None) -> None:
        heard.update(name for name in ("c-first", "c-second") if name.encode() in data)

    await ledger.subscribe(ANNOUNCE_SUBJECT, on_announce)
    appending, written = True, 0

    async def append() -> None:
        nonlocal written
        while appending:
            written += 1
            await d0.facts(offer(f"d.{written % 50}", PROMPT[: 8 + written % 50], rev=written))
            await d0.beat()
            await asyncio.sleep(0.002)

    writer = asyncio.create_task(append())
    first = start("tests.unit.daemon.coordinator_process", server.url, "c-first")
    try:
        await until(lambda: "c-first" in heard, "the first announces itself")
        first.kill()
        await asyncio.to_thread(first.wait, 10)
        second = start("tests.unit.daemon.coordinator_process", server.url, "c-second")
        await until(lambda: "c-second" in heard, "the second announces itself")
        appending = False
        await writer
        # It can only decide this once it took the lead from the killed one.
        resume = encode_query(Query(verb="resume"))
        decided = decode_answer(await ledger.request("kvfbus.query.c-second", resume, BOUND_S))
        assert "error" not in decided
        last = (await ledger.bounds(FACTS_STREAM)).last
        query = encode_query(Query(verb="digest", position=last, timeout_s=BOUND_S))
        live = decode_answer(await ledger.request("kvfbus.query.c-second", query, BOUND_S))
        assert "error" not in live
        replayed = await fold_elsewhere(server.url, live["position"], "afresh")
        assert replayed == live
        second.send_signal(signal.SIGTERM)
        _, err = await asyncio.to_thread(second.communicate, None, 20)
        assert second.returncode == 0, err
        assert "Traceback" not in err
    finally:
        appending = False
        await asyncio.gather(writer, return_exceptions=True)
        for process in (first, second):
            if process.poll() is None:
                process.kill()
            await asyncio.to_thread(process.communicate, None, 10)
    entries = (await read_catalogue(ledger)).entries
    assert entries, "SIGTERM left a checkpoint"


async def test_it_works_on_after_the_server_was_killed_and_started_again(
    server: EmbeddedServer, ledger: JetStreamLedger
) -> None:
    p0, d0 = FakeNode(ledger, "p0"), FakeNode(ledger, "d0")
    async with running(ledger) as coordinator:
        for node in (p0, d0):
            await node.join()
            await node.start()
        await settled(coordinator, await d0.facts(offer("d.1", PROMPT)))
        assert (await plan(ledger, coordinator, plan_request("p0", PROMPT))).candidates
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not ledger.connected(), "the connection is lost")
        await until(ledger.connected, "the server is back")
        for node in (p0, d0):
            await node.stop()
            await node.start()

        async def stored() -> int:
            while True:
                try:
                    return await d0.facts(offer("d.2", PROMPT[:32]))
                except KVFerryError:
                    d0.seq -= 1
                    await asyncio.sleep(0.1)

        await settled(coordinator, await asyncio.wait_for(stored(), BOUND_S))
        answer = await plan(ledger, coordinator, plan_request("p0", PROMPT))
        assert [one.node for one in answer.candidates] == ["d0"]
        space = coordinator.projector.state.spaces[SPACE]
        assert {node.status for node in space.nodes.values()} == {JOINED}
        assert (await ask(ledger, coordinator, verb="pause"))["set"][0]["mode"] == "paused"
        await p0.stop()
        await d0.stop()
