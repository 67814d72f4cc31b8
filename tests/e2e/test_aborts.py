"""Requests that end while their blocks are being read, on the target's and on the source's side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.e2e import conservation
from tests.e2e.conftest import BLOCK, StartEngine, joined, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of
from tests.e2e.relay import Relay

from kvferry.core.events import (
    Event,
    NodeClosed,
    PinEnded,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
)

pytestmark = pytest.mark.engine

SMALL_POOL = {"kv_cache_memory_bytes": 6 << 20, "max_model_len": 4096}
LEASE_MS = 2_000
"""192 blocks: three prompts of 2,500 tokens reuse each of them."""


class Fleet(NamedTuple):
    relay: Relay
    p0: EngineProcess
    d0: EngineProcess
    free: dict[str, int]


@pytest.fixture(scope="module")
def fleet(start_engine: StartEngine) -> Iterator[Fleet]:
    relay = Relay()
    try:
        # Leases end soon, for their blocks count as missing as long as they stand.
        lent = {**relay.connector_options(), "lease_ms": LEASE_MS}
        p0 = start_engine("p0", connector=lent, **SMALL_POOL)
        d0 = start_engine("d0", connector={"pin_timeout_ms": 20_000, "lease_ms": LEASE_MS})
        joined(p0, d0)
        free = {engine.name: engine.ask("free_blocks") for engine in (p0, d0)}
        yield Fleet(relay, p0, d0, free)
    finally:
        relay.close()


def idle(engine: EngineProcess) -> None:
    """Wait until nothing is left of any request, in the engine or in the connector."""
    for probe in ("requests", "open", "reserved"):
        engine.until(probe, lambda left: left == 0)


def abort_while_it_generates(engine: EngineProcess, name: str, text: list[int]) -> None:
    """Held in between, so that it cannot end before the abort comes."""
    engine.ask("hold_at", len(text) + 1)
    engine.add(name, text, tokens=1000)
    engine.until("held", bool)
    engine.abort(name)
    engine.hold(False)
    idle(engine)


def overwrite(p0: EngineProcess, seed: int) -> None:
    """Fill the source's pool with other prompts."""
    for i in range(3):
        p0.run(f"fill-{seed}-{i}", prompt(1000 + 10 * seed + i, 2500), tokens=2)


def about(plane: Plane, kind: type[Any], request: str) -> Any:
    """The one event of a kind about a request."""

    def found(seen: Any) -> list[Event]:
        return [e for e in of(seen, kind) if e.request.startswith(request)]

    (event,) = found(plane.wait_for(found, f"{kind.__name__} of {request}"))
    return event


def pin_of(plane: Plane, transfer: str) -> PinEnded:
    seen = plane.wait_for(lambda seen: of(seen, PinEnded, transfer=transfer), "the pin's end")
    (ended,) = of(seen, PinEnded, transfer=transfer)
    return ended


def test_target_aborts_in_mid_read(fleet: Fleet, reference: EngineProcess, plane: Plane) -> None:
    text = prompt(200, 1200)
    first = fleet.p0.run("a-p", text, tokens=2)
    fleet.relay.stall_after(5 * BLOCK * 1024)
    fleet.d0.add("a-1", text, tokens=8, kvferry={"hint": first.hint})
    fleet.relay.wait_held()
    fleet.d0.abort("a-1")
    idle(fleet.d0)
    conservation.blocks_return(fleet.d0, fleet.free["d0"])
    fleet.relay.carry()

    failed = about(plane, TransferFailed, "a-1")
    assert (failed.stage, failed.reason) == ("use", "aborted")
    assert failed.fence == "socket_closed"
    assert about(plane, RequestEnded, "a-1").outcome == "aborted"
    assert pin_of(plane, failed.transfer).how == "abort"

    again = fleet.d0.run("a-2", text, tokens=8, kvferry={"hint": first.hint})
    assert again.tokens == reference.run("a", text, tokens=8).tokens
    assert again.report["pulled"] == 1200 // BLOCK * BLOCK


def test_source_reuses_the_blocks_before_it_sends_them(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    """What arrives is another prompt's KV with a digest that fits; only ``done`` tells."""
    text = prompt(210, 900)
    first = fleet.p0.run("b-p", text, tokens=2)
    fleet.relay.hold_requests()
    fleet.d0.add("b-1", text, tokens=8, kvferry={"hint": first.hint})
    fleet.relay.wait_held()
    overwrite(fleet.p0, 1)
    fleet.relay.carry()
    answer = fleet.d0.answer("b-1")
    assert answer.tokens == reference.run("b", text, tokens=8).tokens
    assert (answer.report["pulled"], answer.report["computed"]) == (0, 900)
    failed = about(plane, TransferFailed, "b-1")
    assert (failed.stage, failed.reason) == ("settle", "void")
    assert pin_of(plane, failed.transfer).how == "void"


def test_target_aborts_while_the_source_reuses_the_blocks(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(220, 1000)
    first = fleet.p0.run("c-p", text, tokens=2)
    fleet.relay.stall_after(3 * BLOCK * 1024)
    fleet.d0.add("c-1", text, tokens=8, kvferry={"hint": first.hint})
    fleet.relay.wait_held()
    overwrite(fleet.p0, 2)
    fleet.d0.abort("c-1")
    idle(fleet.d0)
    fleet.relay.carry()
    failed = about(plane, TransferFailed, "c-1")
    assert failed.reason == "aborted"
    assert pin_of(plane, failed.transfer).how == "abort"

    again = fleet.d0.run("c-2", text, tokens=8, kvferry={"hint": first.hint})
    assert again.tokens == reference.run("c", text, tokens=8).tokens
    assert again.report["pulled"] == 0
    assert again.report["computed"] == 1000
    conservation.blocks_return(fleet.d0, fleet.free["d0"])
    conservation.blocks_return(fleet.p0, fleet.free["p0"])


def test_source_aborts_the_request_that_made_the_blocks(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    """An aborted request's blocks are offered too; a second abort in mid-read does no harm.

    The prompt is long, so that a plan moves it on any machine.
    """
    text = prompt(230, 2500)
    abort_while_it_generates(fleet.p0, "d-p1", text)
    about(plane, Retained, "d-p1")
    plane.wait_projected()

    fleet.relay.stall_after(2 * BLOCK * 1024)
    fleet.d0.add("d-1", text, tokens=8)
    fleet.relay.wait_held()
    abort_while_it_generates(fleet.p0, "d-p2", text)
    fleet.relay.carry()
    answer = fleet.d0.answer("d-1")
    assert answer.tokens == reference.run("d", text, tokens=8).tokens
    assert answer.report["pulled"] == 2500 // BLOCK * BLOCK
    assert about(plane, RequestEnded, "d-p1").outcome == "aborted"
    assert pin_of(plane, about(plane, Transferred, "d-1").transfer).how == "intact"


def test_target_aborts_while_a_frozen_source_owes_the_pin(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(240, 800)
    first = fleet.p0.run("e-p", text, tokens=2)
    longer_there = text[:500] + prompt(241, 300)
    fleet.p0.freeze()
    try:
        fleet.d0.add("e-1", longer_there, tokens=8, kvferry={"hint": first.hint})
        fleet.d0.until("requests", lambda count: count == 1)
        fleet.d0.abort("e-1")
        idle(fleet.d0)
        # The engine goes on while the source says nothing.
        other = prompt(242, 100)
        answer = fleet.d0.run("e-other", other, tokens=8, kvferry={"reuse": "off"})
        assert answer.tokens == reference.run("e-other", other, tokens=8).tokens
    finally:
        fleet.p0.thaw()
    fleet.p0.until("pins", lambda count: count == 0)
    asked = about(plane, Requested, "e-1")
    assert (asked.transfer, asked.miss) == ("", "aborted")
    again = fleet.d0.run("e-2", longer_there, tokens=8, kvferry={"hint": first.hint})
    assert again.tokens == reference.run("e", longer_there, tokens=8).tokens
    assert again.report["pulled"] == 500 // BLOCK * BLOCK


def test_a_sibling_does_not_lose_by_the_abort_of_the_one_that_loads(
    fleet: Fleet, reference: EngineProcess
) -> None:
    text = prompt(250, 1100)
    first = fleet.p0.run("f-p", text, tokens=2)
    fleet.relay.stall_after(4 * BLOCK * 1024)
    for i in (1, 2):
        fleet.d0.add(f"f-{i}", text, tokens=8, kvferry={"hint": first.hint})
    fleet.relay.wait_held()
    fleet.d0.abort("f-1")
    fleet.d0.until("requests", lambda count: count == 1)
    fleet.relay.carry()
    answer = fleet.d0.answer("f-2")
    assert answer.tokens == reference.run("f", text, tokens=8).tokens
    assert answer.report["pulled"] == 1100 // BLOCK * BLOCK


def test_every_second_of_many_is_aborted(fleet: Fleet, reference: EngineProcess) -> None:
    texts = [prompt(260 + i, 400 + 32 * i) for i in range(8)]
    hints = [fleet.p0.run(f"g-p{i}", text, tokens=2).hint for i, text in enumerate(texts)]
    fleet.relay.stall_after(2 * BLOCK * 1024)
    for i, text in enumerate(texts):
        fleet.d0.add(f"g-{i}", text, tokens=8, kvferry={"hint": hints[i]})
    fleet.relay.wait_held(connections=4)
    for i in range(0, 8, 2):
        fleet.d0.abort(f"g-{i}")
    fleet.relay.carry()
    for i in range(1, 8, 2):
        answer = fleet.d0.answer(f"g-{i}")
        assert answer.tokens == reference.run(f"g-{i}", texts[i], tokens=8).tokens
        assert answer.report["pulled"] == len(texts[i]) // BLOCK * BLOCK
    idle(fleet.d0)


def test_nothing_leaked_and_the_books_balance(fleet: Fleet, plane: Plane) -> None:
    facts = conservation.check(plane, [fleet.p0, fleet.d0])
    # Whoever gave up said so: no source had to wait for a pin's deadline.
    assert {p.how for p in of(facts, PinEnded) if p.granted} == {"intact", "void", "abort"}
    for engine in (fleet.p0, fleet.d0):
        conservation.blocks_return(engine, fleet.free[engine.name])


def test_a_source_is_stopped_in_mid_read(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    """A clean stop ends its pins in the ledger; the reader recomputes."""
    text = prompt(280, 900)
    first = fleet.p0.run("h-p", text, tokens=2)
    fleet.relay.stall_after(3 * BLOCK * 1024)
    fleet.d0.add("h-1", text, tokens=8, kvferry={"hint": first.hint})
    fleet.relay.wait_held()
    fleet.p0.stop()
    fleet.relay.cut()
    answer = fleet.d0.answer("h-1")
    assert answer.tokens == reference.run("h", text, tokens=8).tokens
    assert answer.report["pulled"] == 0
    failed = about(plane, TransferFailed, "h-1")
    assert (failed.stage, failed.reason) == ("read", "unreachable")
    assert pin_of(plane, failed.transfer).how == "closed"
    facts = conservation.check(plane, [fleet.d0])
    assert isinstance([r.event for r in facts if r.node == "p0"][-1], NodeClosed)
    conservation.blocks_return(fleet.d0, fleet.free["d0"])
