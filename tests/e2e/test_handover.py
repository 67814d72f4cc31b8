"""One engine takes a prompt's blocks over while another still computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e import conservation
from tests.e2e.conftest import BLOCK, StartEngine, joined, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of
from tests.e2e.relay import Relay

from kvferry.core.events import PinEnded, Requested, TransferFailed, Transferred
from kvferry_backends.tcp.wire import HEAD_BYTES

pytestmark = pytest.mark.engine

CHUNKS = {"max_num_batched_tokens": 256, "long_prefill_token_threshold": 224}
"""A prompt is computed in many steps, and other requests get their turn between them."""
SMALL_POOL = {"kv_cache_memory_bytes": 9 << 20, "max_model_len": 8192}
"""288 blocks: a prompt of 7,000 tokens takes 219."""
LONG = 7000
MIDDLE = 1000
FROZEN_MS = 8_000  # A source that is silent for so long is given up; a busy machine is not.


class Fleet:
    """p0 computes, d0 follows and checks no digests, so that only equal tokens tell."""

    def __init__(self, relay: Relay, p0: EngineProcess, d0: EngineProcess) -> None:
        self.relay, self.p0, self.d0 = relay, p0, d0
        self.free = {engine.name: engine.ask("free_blocks") for engine in (p0, d0)}
        self.said = p0.run("said", prompt(1, 64), tokens=1).hint
        """Any hint of p0 proves who and where it is."""

    def publish(self, name: str, text: list[int], *, until: int = 0) -> None:
        """p0 begins with a prompt; once it has computed ``until`` tokens it stands still."""
        self.p0.ask("hold_at", until)
        self.p0.add(f"{name}-p", text, tokens=1, kvferry={"publish": name})
        if until:
            self.p0.until("held", bool)
            assert self.p0.ask("computed") < len(text)

    def follow(self, name: str, text: list[int], *, request: str = "") -> str:
        params = {"follow": name, "hint": self.said}
        request = request or f"{name}-d"
        self.d0.add(request, text, tokens=12, kvferry=params)
        return request


@pytest.fixture(scope="module")
def fleet(start_engine: StartEngine) -> Iterator[Fleet]:
    relay = Relay()
    try:
        p0 = start_engine("p0", connector=relay.connector_options(), **CHUNKS, **SMALL_POOL)
        follows = {"verify": "off", "handover_start": 0.0, "pin_timeout_ms": FROZEN_MS}
        d0 = start_engine("d0", connector=follows)
        joined(p0, d0)
        yield Fleet(relay, p0, d0)
    finally:
        relay.close()


def expected(reference: EngineProcess, text: list[int]) -> list[int]:
    return reference.run(f"reference-{text[0]}-{len(text)}", text, tokens=12).tokens


def about(plane: Plane, kind: type[Any], request: str) -> Any:
    """The one event of a kind about a request."""

    def found(seen: Any) -> list[Any]:
        return [e for e in of(seen, kind) if e.request.startswith(request)]

    (event,) = found(plane.wait_for(found, f"{kind.__name__} of {request}"))
    return event


def test_blocks_move_while_the_prompt_is_computed(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(300, LONG)
    fleet.publish("a", text, until=MIDDLE)
    fleet.follow("a", text)
    fleet.p0.until("pins", lambda pins: pins == 1)
    assert fleet.d0.ask("open") == 1
    assert fleet.p0.ask("computed") < LONG
    fleet.p0.hold(False)
    fleet.p0.answer("a-p")
    answer = fleet.d0.answer("a-d")
    assert answer.tokens == expected(reference, text)
    assert answer.report["pulled"] == LONG // BLOCK * BLOCK
    assert answer.report["from"] == "p0"
    asked, moved = about(plane, Requested, "a-d"), about(plane, Transferred, "a-d")
    assert (asked.basis, asked.granted) == ("handover", LONG // BLOCK)
    assert (moved.start, moved.count) == (0, LONG // BLOCK)
    pins = plane.wait_for(lambda seen: of(seen, PinEnded, transfer=moved.transfer), "the pin's end")
    (pin,) = of(pins, PinEnded, transfer=moved.transfer)
    assert (pin.how, pin.granted) == ("intact", LONG // BLOCK)


def test_damaged_blocks_would_show(fleet: Fleet, reference: EngineProcess) -> None:
    """The negative control of every equality here: what is taken over is really used."""
    text = prompt(310, LONG)
    fleet.relay.damage(HEAD_BYTES + 3, 8 * BLOCK * 1024, every=4, mask=0x80)
    fleet.publish("b", text)
    fleet.follow("b", text)
    fleet.p0.answer("b-p")
    answer = fleet.d0.answer("b-d")
    fleet.relay.carry()
    assert answer.report["pulled"] == LONG // BLOCK * BLOCK
    assert answer.tokens != expected(reference, text)


def test_the_next_turn_takes_only_the_tail_over(fleet: Fleet, reference: EngineProcess) -> None:
    """Both ways at once: p0 pulls what d0 generated, and d0 follows p0 through the new part."""
    text = prompt(320, 2000)
    first = fleet.d0.run("c-1", text, tokens=100)
    longer = text + first.tokens + prompt(321, 1500)
    fleet.p0.add("c-p", longer, tokens=1, kvferry={"publish": "c", "hint": first.hint})
    fleet.follow("c", longer)
    of_p, of_d = fleet.p0.answer("c-p"), fleet.d0.answer("c-d")
    held = 2099 // BLOCK * BLOCK
    assert of_p.report["pulled"] == held
    assert (of_d.report["local"], of_d.report["pulled"]) == (held, 3600 // BLOCK * BLOCK - held)
    assert of_d.tokens == expected(reference, longer)


def test_a_prefill_aborted_halfway_leaves_what_it_got_done(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(330, LONG)
    fleet.publish("e", text, until=2 * MIDDLE)
    fleet.follow("e", text)
    fleet.p0.until("pins", lambda pins: pins == 1)
    fleet.p0.abort("e-p")
    fleet.p0.hold(False)
    answer = fleet.d0.answer("e-d")
    assert answer.tokens == expected(reference, text)
    assert MIDDLE < answer.report["pulled"] < LONG // BLOCK * BLOCK
    moved = about(plane, Transferred, "e-d")
    assert moved.tokens == answer.report["pulled"]


def test_a_prefill_aborted_before_its_first_block(fleet: Fleet, reference: EngineProcess) -> None:
    text = prompt(340, 2000)
    fleet.p0.hold(True)
    fleet.publish("f", text)
    fleet.follow("f", text)
    fleet.d0.until("requests", lambda count: count == 1)
    fleet.p0.abort("f-p")
    fleet.p0.hold(False)
    answer = fleet.d0.answer("f-d")
    assert answer.tokens == expected(reference, text)
    assert answer.report["pulled"] == 0


def test_a_preempted_prefill_leaves_what_it_got_done(
    fleet: Fleet, reference: EngineProcess
) -> None:
    text = prompt(350, LONG)
    fleet.publish("g", text, until=2 * MIDDLE)
    fleet.follow("g", text)
    fleet.p0.until("pins", lambda pins: pins == 1)
    assert fleet.p0.ask("preempt").startswith("g-p")
    fleet.p0.hold(False)
    answer = fleet.d0.answer("g-d")
    assert answer.tokens == expected(reference, text)
    assert MIDDLE < answer.report["pulled"] < LONG // BLOCK * BLOCK
    assert fleet.p0.answer("g-p").report["prompt_tokens"] == LONG


def test_blocks_that_others_take_before_they_are_read(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    """The prefill is aborted and its memory reused while the follower's reads are held up."""
    text = prompt(355, LONG)
    fleet.relay.hold_requests()
    fleet.publish("o", text, until=2 * MIDDLE)
    fleet.follow("o", text)
    fleet.relay.wait_held()
    fleet.p0.abort("o-p")
    fleet.p0.hold(False)
    for i in range(2):
        fleet.p0.run(f"o-other-{i}", prompt(356 + i, LONG), tokens=2)
    fleet.relay.carry()
    answer = fleet.d0.answer("o-d")
    assert answer.tokens == expected(reference, text)
    assert answer.report["pulled"] == 0
    failed = about(plane, TransferFailed, "o-d")
    assert (failed.stage, failed.reason) == ("settle", "void")


def test_the_follower_aborts_while_it_loads(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(360, LONG)
    fleet.publish("h", text, until=MIDDLE)
    fleet.follow("h", text)
    fleet.p0.until("pins", lambda pins: pins == 1)
    fleet.d0.abort("h-d")
    fleet.d0.until("requests", lambda count: count == 0)
    fleet.p0.until("pins", lambda pins: pins == 0)
    fleet.p0.hold(False)
    fleet.p0.answer("h-p")
    failed = about(plane, TransferFailed, "h-d")
    assert (failed.stage, failed.reason) == ("use", "aborted")
    conservation.blocks_return(fleet.d0, fleet.free["d0"])


def test_the_follower_aborts_while_it_waits(fleet: Fleet, plane: Plane) -> None:
    text = prompt(370, 2000)
    fleet.p0.hold(True)
    fleet.publish("i", text)
    fleet.follow("i", text)
    fleet.d0.until("requests", lambda count: count == 1)
    fleet.d0.abort("i-d")
    fleet.d0.until("requests", lambda count: count == 0)
    assert fleet.d0.ask("reserved") == 0
    fleet.p0.hold(False)
    fleet.p0.answer("i-p")
    assert about(plane, Requested, "i-d").miss == "aborted"


def test_several_at_once_and_siblings_of_one(fleet: Fleet, reference: EngineProcess) -> None:
    texts = [prompt(380 + i, 3000) for i in range(2)]
    for i, text in enumerate(texts):
        fleet.publish(f"j{i}", text)
        fleet.follow(f"j{i}", text)
    fleet.follow("j0", texts[0], request="j0-sibling")
    for i, text in enumerate(texts):
        answer = fleet.d0.answer(f"j{i}-d")
        assert answer.tokens == expected(reference, text)
        assert answer.report["pulled"] == 3000 // BLOCK * BLOCK
    sibling = fleet.d0.answer("j0-sibling")
    assert sibling.tokens == expected(reference, texts[0])
    assert (sibling.report["local"], sibling.report["pulled"]) == (3000 // BLOCK * BLOCK, 0)
    for i in range(2):
        fleet.p0.answer(f"j{i}-p")


def test_a_prompt_that_nobody_computes_is_computed_here(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(390, 1000)
    fleet.follow("nobody", text, request="k-d")
    answer = fleet.d0.answer("k-d")
    assert answer.tokens == expected(reference, text)
    assert answer.report["computed"] == 1000


def test_another_prompt_under_the_same_name_is_not_taken(
    fleet: Fleet, reference: EngineProcess
) -> None:
    text = prompt(400, 1000)
    fleet.publish("l", prompt(401, 1000))
    fleet.follow("l", text)
    answer = fleet.d0.answer("l-d")
    assert answer.tokens == expected(reference, text)
    assert answer.report["pulled"] == 0
    fleet.p0.answer("l-p")


def test_a_source_that_freezes_is_given_up(fleet: Fleet, reference: EngineProcess) -> None:
    text = prompt(410, LONG)
    fleet.publish("m", text, until=MIDDLE)
    fleet.follow("m", text)
    fleet.p0.until("pins", lambda pins: pins == 1)
    fleet.p0.freeze()
    try:
        answer = fleet.d0.answer("m-d")
    finally:
        fleet.p0.thaw()
    fleet.p0.hold(False)
    fleet.p0.answer("m-p")
    assert answer.tokens == expected(reference, text)
    assert answer.report["pulled"] == 0


def test_nothing_leaked_and_the_books_balance(fleet: Fleet, plane: Plane) -> None:
    conservation.check(plane, [fleet.p0, fleet.d0])
    for engine in (fleet.p0, fleet.d0):
        conservation.blocks_return(engine, fleet.free[engine.name])


def test_a_source_that_is_killed_halfway(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(420, LONG)
    fleet.publish("n", text, until=MIDDLE)
    fleet.follow("n", text)
    fleet.p0.until("pins", lambda pins: pins == 1)
    fleet.p0.kill()
    answer = fleet.d0.answer("n-d")
    assert answer.tokens == expected(reference, text)
    assert (answer.report["pulled"], answer.report["computed"]) == (0, LONG)
    assert about(plane, TransferFailed, "n-d").reason == "unreachable"
    conservation.check(plane, [fleet.d0])
    conservation.blocks_return(fleet.d0, fleet.free["d0"])
