"""A target that reads late: what it read may be another prompt's, and it must find out.

The source's pool is small, so a few other requests overwrite what was pinned. A pin reserves
nothing: the second question (``done``) is what keeps the answer right, and the last test shows
what happens without it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.conftest import StartEngine, joined, prompt
from tests.e2e.conservation import audited
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, Recorded, of
from tests.e2e.relay import Relay

from kvferry.core.events import Evicted, PinEnded, TransferFailed, Transferred

BLOCK = 32
BLOCK_BYTES = 32 << 10
POOL_BLOCKS = 64
PROMPT = 960
FILLER = 1400
FILLERS = 3
"""Together they take more than the source's whole pool."""
PIN_MS = 15_000

pytestmark = pytest.mark.engine


class Scene:
    """A source with a small pool, a target, and a relay between their data planes."""

    def __init__(self, source: EngineProcess, target: EngineProcess, relay: Relay) -> None:
        self.source, self.target, self.relay = source, target, relay

    def begin(self, name: str, seed: int) -> tuple[list[int], str]:
        """The target has pinned and asked for the bytes; its question lies at the relay.

        Returns the prompt and the offer that it was pinned from.
        """
        text = prompt(seed, PROMPT)
        hint = self.source.run(f"{name}-s", text, tokens=2).hint
        assert hint["blocks"] == PROMPT // BLOCK
        self.relay.hold_requests()
        self.target.add(f"{name}-t", text, tokens=24, kvferry={"hint": hint})
        self.relay.wait_held()
        return text, str(hint["offer"])

    def overwrite(self, name: str, seed: int) -> None:
        """The source computes other prompts until nothing of its cache is left."""
        for i in range(FILLERS):
            self.source.run(f"{name}-f{i}", prompt(seed + i, FILLER), tokens=2)


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    made = Relay()
    yield made
    made.close()


@pytest.fixture(scope="module")
def scene(start_engine: StartEngine, relay: Relay) -> Scene:
    small = {"kv_cache_memory_bytes": POOL_BLOCKS * BLOCK_BYTES, "max_model_len": 1536}
    source = start_engine(
        "source", connector={"lease_budget": 0.0, **relay.connector_options()}, **small
    )
    target = start_engine("target", connector={"pin_ms": PIN_MS, "transfer_timeout_ms": 60_000})
    joined(source, target)
    assert source.ask("total_blocks") == POOL_BLOCKS
    return Scene(source, target, relay)


def gone(plane: Plane, offer: str) -> None:
    """Every block of the offer was handed out again."""
    plane.wait_for(
        lambda seen: of(seen, Evicted, offer=offer, keep=0, reason="reuse"), f"the end of {offer}"
    )


def failure(plane: Plane, request: str) -> TransferFailed:
    """How the transfer of a request ended, once the ledger has it."""

    def mine(seen: list[Recorded]) -> list[TransferFailed]:
        return [e for e in of(seen, TransferFailed) if e.request.startswith(request)]

    (only,) = mine(plane.wait_for(mine, f"the outcome of {request}"))
    return only


def pin_end(plane: Plane, transfer: str) -> PinEnded:
    """How the source's pin ended, once the ledger has it."""
    seen = plane.wait_for(lambda seen: of(seen, PinEnded, transfer=transfer), "the pin's end")
    (only,) = of(seen, PinEnded, transfer=transfer)
    return only


def test_a_late_read_is_void_and_recomputed(
    scene: Scene, reference: EngineProcess, plane: Plane
) -> None:
    text, offer = scene.begin("late", 100)
    scene.overwrite("late", 110)
    scene.relay.carry()
    answer = scene.target.answer("late-t")
    assert answer.tokens == reference.run("late", text, tokens=24).tokens
    assert answer.report["pulled"] == 0
    assert answer.report["computed"] == PROMPT
    assert answer.report["miss"] == "transfer_failed"
    gone(plane, offer)
    failed = failure(plane, "late-t")
    # The bytes came, and their digests were right: only the source could know better.
    assert (failed.stage, failed.reason) == ("settle", "void")
    assert pin_end(plane, failed.transfer).how == "void"


def test_a_target_frozen_between_pin_and_read_recomputes(
    scene: Scene, reference: EngineProcess, plane: Plane
) -> None:
    text, offer = scene.begin("frozen", 200)
    scene.target.freeze()
    try:
        scene.overwrite("frozen", 210)
        scene.relay.carry()
    finally:
        scene.target.thaw()
    answer = scene.target.answer("frozen-t")
    assert answer.tokens == reference.run("frozen", text, tokens=24).tokens
    assert answer.report["pulled"] == 0
    gone(plane, offer)
    failed = failure(plane, "frozen-t")
    assert (failed.stage, failed.reason) == ("settle", "void")
    assert pin_end(plane, failed.transfer).how == "void"


def test_a_target_frozen_past_its_deadline_recomputes(
    scene: Scene, reference: EngineProcess, plane: Plane
) -> None:
    text, offer = scene.begin("expired", 300)
    scene.target.freeze()
    try:
        plane.wait_for(lambda seen: of(seen, PinEnded, how="deadline"), "the pin's deadline", 60.0)
        scene.overwrite("expired", 310)
        scene.relay.carry()
    finally:
        scene.target.thaw()
    answer = scene.target.answer("expired-t")
    assert answer.tokens == reference.run("expired", text, tokens=24).tokens
    assert answer.report["pulled"] == 0
    gone(plane, offer)
    failed = failure(plane, "expired-t")
    # The target may notice at its renewal or at its second question, whichever comes first.
    assert (failed.stage, failed.reason) in {("settle", "void"), ("read", "refused")}
    assert pin_end(plane, failed.transfer).how == "deadline"


def test_nothing_leaks_after_void_reads(scene: Scene) -> None:
    for engine in (scene.source, scene.target):
        engine.run(f"poke-{engine.name}", prompt(400, 10), tokens=2)
        for probe in ("open", "requests"):
            engine.until(probe, lambda left: left == 0)
        assert engine.ask("free_blocks") == engine.ask("total_blocks") - 1


def test_a_read_in_time_is_used(scene: Scene, reference: EngineProcess, plane: Plane) -> None:
    """The same delay without the overwriting: the pin is intact, so nothing is recomputed."""
    text, _ = scene.begin("early", 500)
    scene.relay.carry()
    answer = scene.target.answer("early-t")
    assert answer.report["pulled"] == PROMPT
    assert answer.tokens == reference.run("early", text, tokens=24).tokens


def test_control_without_the_second_question_the_answer_is_wrong(
    scene: Scene, reference: EngineProcess, plane: Plane
) -> None:
    scene.target.ask("trust_reads", True)
    try:
        text, offer = scene.begin("control", 600)
        scene.overwrite("control", 610)
        scene.relay.carry()
        answer = scene.target.answer("control-t")
    finally:
        scene.target.ask("trust_reads", False)
    gone(plane, offer)
    assert answer.report["pulled"] == PROMPT
    assert answer.tokens != reference.run("control", text, tokens=24).tokens

    def used(seen: list[Recorded]) -> list[Transferred]:
        return [e for e in of(seen, Transferred) if e.request.startswith("control-t")]

    (wrong,) = used(plane.wait_for(used, "the transfer that should have been void"))
    # Nobody asked the source, so its pin ends at the deadline. Of all that happened in this
    # module, this is what an audit finds: blocks were used that their source never vouched for.
    assert pin_end(plane, wrong.transfer).how == "deadline"
    (broken,) = audited(plane).violations
    assert (broken.invariant, broken.about) == ("source_decides", wrong.transfer)
    assert "ended the pin as deadline" in broken.story
