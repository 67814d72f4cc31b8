"""Engines frozen and killed in the middle of things: the others answer right and lose nothing.

The tests go from the gentle to the final and share three engines; a test that needs one which an
earlier test killed starts it again under its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import conservation
from tests.e2e.conftest import BLOCK, StartEngine, engine_starter, joined, prompt, stop_all
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, Recorded, of
from tests.e2e.relay import Relay

from kvferry.core.events import (
    Inventory,
    NodeJoined,
    NodeLeft,
    PinEnded,
    Requested,
    Retained,
    TransferFailed,
)
from kvferry.core.state import FAILED, JOINED, LEFT
from kvferry_backends.digest import DIGEST_BYTES
from kvferry_backends.tcp.wire import HEAD_BYTES

pytestmark = pytest.mark.engine

SILENT_AFTER_S = 10.0
PIN_MS = 5_000
TRANSFER_MS = 15_000
LEASE_MS = 5_000
LONG = 4000
"""Tokens of a prompt that is dear to recompute on any machine, so that a plan moves it."""
BLOCK_BYTES = BLOCK * 1024


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A ledger whose coordinator gives silent nodes up soon."""
    made = Plane(tmp_path_factory.mktemp("plane"), silent_after_s=SILENT_AFTER_S)
    try:
        made.start_coordinator()
        yield made
    finally:
        made.stop()


class Fleet:
    """p0 serves its blocks through the relay; d0 and d1 read from it."""

    def __init__(self, start: StartEngine, relay: Relay) -> None:
        self.relay = relay
        self._start = start
        self._engines: dict[str, EngineProcess] = {}
        self._free: dict[str, int] = {}

    def get(self, *names: str) -> list[EngineProcess]:
        """These engines, joined; those that are not alive are started."""
        for name in names:
            if name not in self._engines or not self._engines[name].alive:
                limits: dict[str, Any] = {
                    "pin_ms": PIN_MS,
                    "transfer_timeout_ms": TRANSFER_MS,
                    "lease_ms": LEASE_MS,
                }
                if name == "p0":
                    limits |= self.relay.connector_options()
                else:  # What the relay holds is counted in connections, and meant in reads.
                    limits["backend_options"] = {"tcp": {"connections": 1}}
                self._engines[name] = self._start(name, connector=limits)
                self._free.pop(name, None)
        found = [self._engines[name] for name in names]
        joined(*found)
        for engine in found:
            self._free.setdefault(engine.name, engine.ask("free_blocks"))
        return found

    @property
    def living(self) -> list[EngineProcess]:
        return [engine for engine in self._engines.values() if engine.alive]

    def blocks_return(self) -> None:
        for engine in self.living:
            conservation.blocks_return(engine, self._free[engine.name])


@pytest.fixture(scope="module")
def fleet(plane: Plane, model: Path) -> Iterator[Fleet]:
    relay = Relay()
    made: list[EngineProcess] = []
    try:
        yield Fleet(engine_starter(model, plane.url, made), relay)
    finally:
        relay.close()
        stop_all(made)


def left(plane: Plane, name: str, incarnation: str) -> list[Recorded]:
    """Wait until the leader declares this process life gone; returns the facts."""
    return plane.wait_for(
        lambda seen: of(seen, NodeLeft, node=name, incarnation=incarnation),
        f"that {name} left",
        timeout_s=60.0,
    )


def offered(plane: Plane, request: str) -> None:
    """Wait until the plan service knows what a request left behind."""
    plane.wait_for(
        lambda seen: [r for r in of(seen, Retained) if r.request.startswith(request)],
        f"the offer of {request}",
    )
    plane.wait_projected()


def test_a_frozen_engine_is_given_up_and_comes_back(
    fleet: Fleet, plane: Plane, reference: EngineProcess
) -> None:
    d0, d1, _ = fleet.get("d0", "d1", "p0")
    texts = [prompt(300, LONG), prompt(301, LONG)]
    expected = [reference.run("a", text, tokens=8).tokens for text in texts]
    for i, text in enumerate(texts):
        d0.run(f"a-d0-{i}", text, tokens=2)
    offered(plane, "a-d0-1")
    life = d0.ask("incarnation")
    d0.freeze()
    try:
        left(plane, "d0", life)
        plane.wait_projected()
        node = plane.space().nodes["d0"]
        assert node.status == LEFT
        assert node.why.startswith("silent for")
        assert not [o for o in plane.space().offers.values() if o.node == "d0"]
        answer = d1.run("a-d1-0", texts[0], tokens=8)
        assert answer.report["miss"] == "nothing_held"
        assert answer.tokens == expected[0]
    finally:
        d0.thaw()
    plane.wait_for(
        lambda seen: [j for j in of(seen, NodeJoined, incarnation=life) if j.epoch == 2],
        "the second epoch of d0",
    )
    plane.wait_for(
        lambda seen: [
            r for r in seen if r.node == "d0" and isinstance(r.event, Inventory) and r.event.last
        ],
        "what d0 still holds",
    )
    plane.wait_projected()
    assert plane.space().nodes["d0"].status == JOINED
    answer = d1.run("a-d1-1", texts[1], tokens=8)
    assert not answer.report["miss"]
    assert (answer.report["pulled"], answer.report["from"]) == (LONG, "d0")
    assert answer.tokens == expected[1]
    conservation.check(plane, fleet.living)


def test_a_target_killed_in_mid_transfer(
    fleet: Fleet, plane: Plane, reference: EngineProcess
) -> None:
    p0, d0, d1 = fleet.get("p0", "d0", "d1")
    text = prompt(310, 1400)
    first = p0.run("b-p", text, tokens=1)  # One token: p0 leases the blocks for a reader.
    fleet.relay.stall_after(4 * BLOCK_BYTES)
    d1.add("b-d1", text, tokens=8, kvferry={"hint": first.hint})
    fleet.relay.wait_held()
    seen = plane.wait_for(
        lambda seen: [r for r in of(seen, Requested) if r.request.startswith("b-d1")],
        "the request of b-d1",
    )
    (asked,) = [r for r in of(seen, Requested) if r.request.startswith("b-d1")]
    transfer = asked.transfer
    life = d1.ask("incarnation")
    d1.kill()
    fleet.relay.carry()

    # The source serves on, also the blocks that the dead target was reading.
    expected = reference.run("b", text, tokens=8).tokens
    answer = d0.run("b-d0", text, tokens=8, kvferry={"hint": first.hint})
    assert answer.tokens == expected
    assert answer.report["pulled"] == 1400 // BLOCK * BLOCK
    assert p0.run("b-p2", text, tokens=8).tokens == expected

    left(plane, "d1", life)
    seen = plane.wait_for(lambda seen: of(seen, PinEnded, transfer=transfer), "the pin's end")
    assert [p.how for p in of(seen, PinEnded, transfer=transfer)] == ["deadline"]
    ended = plane.space().transfers[transfer]
    assert (ended.phase, ended.reason) == (FAILED, "node_left")
    told = plane.cli("explain", asked.request)
    assert told.returncode == 0, told.stderr
    assert "d1 was declared gone" in " ".join(told.stdout.split())
    conservation.check(plane, fleet.living)
    fleet.blocks_return()


def test_a_source_killed_in_mid_transfer_and_started_again(
    fleet: Fleet, plane: Plane, reference: EngineProcess
) -> None:
    p0, d0 = fleet.get("p0", "d0")
    texts = [prompt(320 + i, 800 + 64 * i) for i in range(6)]
    plain, late = prompt(330, 200), prompt(331, LONG)
    hints = [p0.run(f"c-p{i}", text, tokens=2).hint for i, text in enumerate(texts)]
    old = p0.run("c-late", late, tokens=2).hint
    offered(plane, "c-late")
    life = p0.ask("incarnation")
    fleet.relay.stall_after(4 * BLOCK_BYTES)
    d0.add("c-plain", plain, tokens=60)
    for i, text in enumerate(texts):
        d0.add(f"c-{i}", text, tokens=8, kvferry={"hint": hints[i]})
    fleet.relay.wait_held(connections=4)
    p0.kill()
    fleet.relay.cut()

    for i, text in enumerate(texts):
        answer = d0.answer(f"c-{i}")
        assert answer.tokens == reference.run(f"c-{i}", text, tokens=8).tokens
        assert (answer.report["pulled"], answer.report["computed"]) == (0, len(text))
    assert d0.answer("c-plain").tokens == reference.run("c-plain", plain, tokens=60).tokens
    fleet.relay.carry()

    left(plane, "p0", life)

    def failures(seen: list[Recorded]) -> list[TransferFailed]:
        return [f for f in of(seen, TransferFailed) if f.request.startswith("c-")]

    failed = failures(
        plane.wait_for(lambda seen: len(failures(seen)) >= len(texts), "every load's failure")
    )
    assert len(failed) == len(texts)
    assert {f.reason for f in failed} == {"unreachable"}
    assert {f.stage for f in failed} <= {"pin", "read"}
    assert sum(f.stage == "read" for f in failed) >= 4
    plane.wait_projected()
    space = plane.space()
    assert space.nodes["p0"].status == LEFT
    assert not [o for o in space.offers.values() if o.node == "p0"]
    answer = d0.run("c-miss", late[:400], tokens=8)
    assert (answer.report["pulled"], answer.report["miss"]) == (0, "nothing_held")
    conservation.check(plane, fleet.living)
    fleet.blocks_return()

    # The next process life of the name is no heir: hints of the last one are worth nothing.
    (p0,) = fleet.get("p0")
    answer = d0.run("c-old", late, tokens=8, kvferry={"hint": old})
    expected = reference.run("c-late", late, tokens=8).tokens
    assert (answer.tokens, answer.report["pulled"]) == (expected, 0)
    offered(plane, "c-old")
    answer = p0.run("c-new", late, tokens=8)
    assert not answer.report["miss"]
    assert answer.tokens == expected
    assert answer.report["from"] == "d0"


def test_a_source_killed_after_its_last_byte(
    fleet: Fleet, plane: Plane, reference: EngineProcess
) -> None:
    """All bytes arrive, and nobody is left to say that they were good: recompute."""
    p0, d0 = fleet.get("p0", "d0")
    text = prompt(340, 300)
    blocks = len(text) // BLOCK
    first = p0.run("d-p", text, tokens=2)
    # The relay holds the very last byte, so it has them all.
    fleet.relay.stall_after(HEAD_BYTES + blocks * (BLOCK_BYTES + DIGEST_BYTES) - 1)
    d0.add("d-1", text, tokens=8, kvferry={"hint": first.hint})
    fleet.relay.wait_held()
    p0.kill()
    fleet.relay.carry()
    answer = d0.answer("d-1")
    assert answer.tokens == reference.run("d", text, tokens=8).tokens
    assert answer.report["pulled"] == 0
    seen = plane.wait_for(
        lambda seen: [f for f in of(seen, TransferFailed) if f.request.startswith("d-1")],
        "the failure of d-1",
    )
    (failed,) = [f for f in of(seen, TransferFailed) if f.request.startswith("d-1")]
    assert (failed.stage, failed.reason) == ("settle", "unreachable")
    conservation.check(plane, fleet.living)
    fleet.blocks_return()
