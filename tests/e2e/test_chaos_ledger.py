"""The control plane killed, missing, late and lied to: engines answer right and lose no record."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.e2e import conservation
from tests.e2e.conftest import BLOCK, StartEngine, joined, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of
from tests.e2e.relay import free_port

from kvferry.core.events import LeaderElected, RequestEnded, Retained
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ledger.subjects import facts_subject
from kvferry.ports.log import FACTS_STREAM

pytestmark = pytest.mark.engine

ROUNDS = 10
AT_ONCE = 4
"""Requests that are under way in each round when the blow falls."""
LONG = 4000
"""Tokens of a prompt that is dear to recompute on any machine, so that a plan moves it."""
ALONE = "serves without a ledger"
LEASE_MS = 5_000
"""Leases end soon, for the blocks are counted."""


class Fleet(NamedTuple):
    p0: EngineProcess
    d0: EngineProcess
    late: EngineProcess
    late_port: int
    late_log: Path
    free: dict[str, int]
    """Free blocks of each engine at its start."""


@pytest.fixture(scope="module")
def fleet(start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Two engines with a ledger, and one whose ledger is not there yet."""
    port = free_port()
    log = tmp_path_factory.mktemp("late") / "engine.log"
    url = f"nats://127.0.0.1:{port}"
    lends = {"lease_ms": LEASE_MS}
    p0, d0 = start_engine("p0", connector=lends), start_engine("d0", connector=lends)
    late = start_engine("late", connector={"nats_url": url}, log=log)
    joined(p0, d0)
    late.wait_ready()
    free = {engine.name: engine.ask("free_blocks") for engine in (p0, d0)}
    return Fleet(p0, d0, late, port, log, free)


def load(
    fleet: Fleet, reference: EngineProcess, name: str, blows: dict[int, Callable[[], None]]
) -> None:
    """Turns over both engines, each answer compared; ``blows`` fall while a round is under way."""
    for number in range(ROUNDS):
        texts = [
            prompt(1000 * len(name) + AT_ONCE * number + i, 150 + 32 * i) for i in range(AT_ONCE)
        ]
        hints = [
            fleet.p0.run(f"{name}-p{number}-{i}", text, tokens=2).hint
            for i, text in enumerate(texts)
        ]
        for i, text in enumerate(texts):
            fleet.d0.add(f"{name}-{number}-{i}", text, tokens=12, kvferry={"hint": hints[i]})
        blows.get(number, lambda: None)()
        for i, text in enumerate(texts):
            answer = fleet.d0.answer(f"{name}-{number}-{i}")
            assert answer.tokens == reference.run(f"{name}-{number}-{i}", text, tokens=12).tokens
            assert answer.report["pulled"] == len(text) // BLOCK * BLOCK


def by_plan(fleet: Fleet, reference: EngineProcess, plane: Plane, name: str, seed: int) -> None:
    """A request without a hint is planned by a coordinator that knows the latest offers."""
    text = prompt(seed, LONG)
    fleet.d0.run(f"{name}-d", text, tokens=2)
    plane.wait_for(
        lambda seen: [r for r in of(seen, Retained) if r.request.startswith(f"{name}-d")],
        f"the offer of {name}-d",
    )
    plane.wait_projected()
    fleet.p0.until("plans", bool)
    answer = fleet.p0.run(f"{name}-p", text, tokens=8)
    assert not answer.report["miss"]
    assert (answer.report["from"], answer.report["pulled"]) == ("d0", LONG)
    assert answer.tokens == reference.run(name, text, tokens=8).tokens


def test_a_coordinator_killed_and_restarted_under_load(
    fleet: Fleet, plane: Plane, reference: EngineProcess
) -> None:
    without = prompt(400, 300)

    def kill() -> None:
        plane.kill_coordinator()
        # Nobody plans now: without a hint an engine computes what it could have pulled.
        answer = fleet.p0.run("a-without", without, tokens=8)
        assert answer.tokens == reference.run("a-without", without, tokens=8).tokens
        assert answer.report["pulled"] == 0

    load(fleet, reference, "a", {3: kill, 6: plane.start_coordinator})
    by_plan(fleet, reference, plane, "a-plan", 401)
    # Plans come from any replica at once; the lead passes on when the dead leader is missed.
    plane.wait_for(lambda seen: len(of(seen, LeaderElected)) == 2, "the second leader")
    facts = conservation.check(plane, [fleet.p0, fleet.d0])
    assert [event.term for event in of(facts, LeaderElected)] == [1, 2]
    for engine in (fleet.p0, fleet.d0):
        conservation.blocks_return(engine, fleet.free[engine.name])


def test_a_ledger_killed_and_restarted_under_load(
    fleet: Fleet, plane: Plane, reference: EngineProcess
) -> None:
    before = plane.server.pid
    load(fleet, reference, "bb", {2: plane.kill_nats})
    for engine in (fleet.p0, fleet.d0):
        engine.until("agent", lambda state: state[0] == "joined")
        engine.until("waiting", lambda left: left == 0)
    assert plane.server.pid != before
    by_plan(fleet, reference, plane, "b-plan", 411)
    facts = conservation.check(plane, [fleet.p0, fleet.d0])
    mine = [e for e in of(facts, RequestEnded) if e.request.startswith("bb-")]
    assert len(mine) == 2 * ROUNDS * AT_ONCE
    for engine in (fleet.p0, fleet.d0):
        conservation.blocks_return(engine, fleet.free[engine.name])
    assert plane.coordinator is not None
    assert plane.coordinator.poll() is None


def test_a_malformed_message_is_quarantined_and_reported(
    fleet: Fleet, plane: Plane, reference: EngineProcess
) -> None:
    subject = facts_subject(fleet.d0.ask("space"), "d0")

    async def spoil(ledger: JetStreamLedger) -> dict[int, str]:
        real = [stored async for stored in ledger.read(FACTS_STREAM, subject=subject)][-1]
        lies = {"noise": b"\xc1garbage", "empty": b"", "torn": real.data[: len(real.data) // 2]}
        return {
            await ledger.append(subject, data, message_id=f"test-{name}"): name
            for name, data in lies.items()
        }

    spoiled = plane.use(spoil)
    assert plane.coordinator is not None
    by_plan(fleet, reference, plane, "c-plan", 421)
    for source in ("coordinator", "ledger"):
        status = status_of(plane)
        assert status["source"] == source
        assert status["quarantined"]["total"] == len(spoiled)
        last = status["quarantined"]["last"]
        assert {one["seq"] for one in last} == set(spoiled)
        assert {one["subject"] for one in last} == {subject}
        assert all(one["why"] for one in last)
        if source == "coordinator":
            assert plane.coordinator.poll() is None
            plane.kill_coordinator()  # The ledger alone says the same.
    plane.start_coordinator()
    by_plan(fleet, reference, plane, "c-again", 422)
    conservation.check(plane, [fleet.p0, fleet.d0], unreadable=spoiled)


def test_an_engine_whose_ledger_comes_late(
    fleet: Fleet, plane: Plane, reference: EngineProcess, tmp_path: Path
) -> None:
    late = fleet.late
    late.until("agent", lambda state: state[0] == "alone")
    assert plain_report(late, reference, "d-none", 430)["miss"] == "no_coordinator"
    with Mute(fleet.late_port) as mute:
        # Something answers on the port now, and it is no NATS server.
        mute.wait_called()
        assert plain_report(late, reference, "d-mute", 431)["miss"] == "no_coordinator"
        assert late.ask("agent")[0] == "alone"
    # A hint needs no ledger: this one carries blocks all the same.
    text = prompt(432, 600)
    hint = fleet.p0.run("d-p", text, tokens=2).hint
    answer = late.run("d-hint", text, tokens=8, kvferry={"hint": hint})
    assert (answer.report["from"], answer.report["pulled"]) == ("p0", 600 // BLOCK * BLOCK)
    assert answer.tokens == reference.run("d-hint", text, tokens=8).tokens

    other = Plane(tmp_path, port=fleet.late_port)
    try:
        other.start_coordinator()
        joined(late)
        assert plain_report(late, reference, "d-joined", 433)["miss"] == "nothing_held"
        facts = conservation.check(other, [late])
        recorded = [e.request.rpartition("-")[0] for e in of(facts, RequestEnded)]
        assert recorded == ["d-none", "d-mute", "d-hint", "d-joined"]
        said = [line for line in fleet.late_log.read_text().splitlines() if ALONE in line]
        assert len(said) == 1, said
    finally:
        late.stop()
        other.stop()


def plain_report(
    engine: EngineProcess, reference: EngineProcess, name: str, seed: int
) -> dict[str, Any]:
    """The report of an answer that equals the reference."""
    text = prompt(seed, 200)
    answer = engine.run(name, text, tokens=8)
    assert answer.tokens == reference.run(name, text, tokens=8).tokens
    assert answer.report["pulled"] == 0
    return answer.report


def status_of(plane: Plane) -> dict[str, Any]:
    done = plane.cli("status", "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


class Mute:
    """A server that takes connections and never says a word."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self._called = threading.Event()
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def wait_called(self) -> None:
        assert self._called.wait(30.0), "nobody connected"

    def __enter__(self) -> Mute:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(10.0)
        for one in (self._listening, *self._taken):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            self._taken.append(taken)
            self._called.set()
