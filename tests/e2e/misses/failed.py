"""There, but not got: late plans, dear links, transfers that fail, sources that go."""

from __future__ import annotations

import os
import re
import signal
import time

from tests.e2e.conftest import BLOCK, prompt
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.misses.scene import BLOCKS, PLAN_MS, PROMPT, Scene
from tests.e2e.misses.telling import missed, pulled
from tests.e2e.plane import of

from kvferry.core.events import NodeClosed, NodeLeft, Transferred
from kvferry.replay.words import duration
from kvferry_backends.tcp.wire import HEAD_BYTES

SLOW_S = 2.0
"""A link that takes so long is dearer than computing a short prompt on any machine."""


def transfer_failed_says_where(scene: Scene, right: EngineProcess) -> None:
    def failing(name: str, seed: int) -> tuple[list[int], Answer]:
        text = prompt(seed, PROMPT)
        held = scene.hold(f"{name}-p", text)
        return text, held

    # Nobody answers where the bytes are.
    text, held = failing("connect", 2_000)
    scene.relay.cut()
    answer = scene.d0.run("connect", text, kvferry={"hint": held.hint})
    scene.relay.carry()
    told = missed(scene, right, text, answer, "transfer_failed")
    assert (told.cause["stage"], told.cause["reason"]) == ("read", "unreachable")
    assert scene.relay.address in told.verdict
    assert "failed at read: the source could not be reached" in told.verdict
    assert "peer and data ports are open" in told.verdict
    # Bytes that are not what was sent.
    text, held = failing("digest", 2_001)
    scene.relay.damage(HEAD_BYTES + 7 * BLOCK * 1024 + 5, 1)
    answer = scene.d0.run("digest", text, kvferry={"hint": held.hint})
    scene.relay.carry()
    told = missed(scene, right, text, answer, "transfer_failed")
    assert (told.cause["stage"], told.cause["reason"]) == ("read", "digest")
    assert re.search(r"block \d+ of 20 .*differs from what the source sent", told.verdict)
    assert "check the network cards" in told.verdict
    # Blocks that were reused while they were read.
    text, held = failing("void", 2_002)
    scene.relay.hold_requests()
    scene.d0.add("void", text, kvferry={"hint": held.hint})
    scene.relay.wait_held()
    scene.flood(54_000)
    gone = scene.gone(held.hint["offer"], "reuse")
    scene.relay.carry()
    told = missed(scene, right, text, scene.d0.answer("void"), "transfer_failed")
    failed, lost = told.story["causes"]
    assert (failed["stage"], failed["reason"]) == ("settle", "void")
    assert (lost["how"], lost["ended_seq"]) == ("evicted_late", gone.seq)
    assert lost["before_ms"] == lost["wanted_ms"] - gone.stored_ms < 0
    assert f"{duration(-lost['before_ms'])} after it was wanted" in told.verdict
    # And undisturbed.
    text, held = failing("whole", 2_003)
    pulled(scene, right, text, scene.d0.run("whole", text, kvferry={"hint": held.hint}))


def plan_late(scene: Scene, right: EngineProcess) -> None:
    text = prompt(2_200, PROMPT)
    held = scene.hold("late-p", text)
    scene.plane.wait_projected()
    coordinator = scene.plane.coordinator
    assert coordinator is not None
    scene.d0.until("plans", bool)
    os.kill(coordinator.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        answer = scene.d0.run("late-d", text)
    finally:
        os.kill(coordinator.pid, signal.SIGCONT)
    took_ms = (time.monotonic() - began_s) * 1_000
    told = missed(scene, right, text, answer, "plan_late")
    cause = told.cause
    assert (cause["how"], cause["offer"]) == ("plan_late", held.hint["offer"])
    assert 0.9 * PLAN_MS < cause["waited_ms"] < took_ms
    assert "the coordinator did not answer within the plan's deadline" in told.verdict
    assert f"it waited for {duration(cause['waited_ms'])}" in told.verdict
    assert f"p0 had offered {BLOCKS} blocks of it" in told.verdict
    pulled(scene, right, text, scene.planned("late-control", text))


def too_dear(scene: Scene, right: EngineProcess) -> None:
    text = prompt(2_300, PROMPT)
    held = scene.hold("slow-p", text)
    scene.relay.hold_requests()
    scene.d0.add("slow-d", text, kvferry={"hint": held.hint})
    scene.relay.wait_held()
    time.sleep(SLOW_S)  # So slow the link is: the ledger learns it.
    scene.relay.carry()
    slow = pulled(scene, right, text, scene.d0.answer("slow-d"))
    (moved,) = of(scene.plane.events(), Transferred, transfer=slow.story["transfers"][0])
    assert moved.read_ms >= SLOW_S * 900
    dear = prompt(2_301, PROMPT)
    for cost in (True, False):
        scene.plane.replace_coordinator(cost=cost)
        if cost:
            scene.hold("dear-p", dear)
        scene.plane.wait_projected()
        answer = scene.planned(f"dear-{cost}", dear)
        if not cost:  # The control: the same link, and nobody who weighs.
            pulled(scene, right, dear, answer)
            continue
        cause = (told := missed(scene, right, dear, answer, "too_dear")).cause
        assert (cause["how"], cause["source"]) == ("too_dear", "p0")
        took_ms = moved.pin_ms + moved.read_ms + moved.settle_ms
        assert took_ms / 2 < cause["predicted_ms"] < took_ms * 2
        assert 0 < cause["recompute_ms"] < cause["predicted_ms"]
        numbers = f"(predicted: {duration(cause['predicted_ms'])} to move from p0 against "
        assert f"{numbers}{duration(cause['recompute_ms'])} to compute)" in told.verdict


def source_killed_while_it_is_read_and_gone_afterwards(scene: Scene, right: EngineProcess) -> None:
    text, later = prompt(2_400, PROMPT), prompt(2_401, PROMPT)
    held = scene.hold("kill-p", text, source=scene.p1)
    other = scene.hold("kill-later-p", later, source=scene.p1)
    scene.other_relay.hold_requests()
    scene.d0.add("kill-d", text, kvferry={"hint": held.hint})
    scene.other_relay.wait_held()
    scene.p1.kill()
    scene.other_relay.carry()
    answer = scene.d0.answer("kill-d")
    seen = scene.plane.wait_for(lambda seen: of(seen, NodeLeft, node="p1"), "p1 to be given up")
    (left,) = [one for one in seen if isinstance(one.event, NodeLeft)]
    scene.plane.wait_projected()
    # What it is called depends on who notices first: the scheduler's pin, refused or cut off on its
    # way, or the read.
    names = ("node_left", "peer_unreachable", "transfer_failed")
    told = missed(scene, right, text, answer, *names)
    failed, gone = told.story["causes"]
    assert (failed["stage"], failed["reason"]) == ("read", "unreachable")
    assert (gone["how"], gone["reason"], gone["source"]) == ("source_gone", "node_left", "p1")
    assert gone["before_ms"] == gone["wanted_ms"] - left.stored_ms < 0
    assert "p1 was declared gone" in told.verdict
    for way, given, miss in (("hint", {"hint": other.hint}, "node_left"), ("plan", None, "")):
        answer = scene.d0.run(f"gone-{way}", later, kvferry=given)
        told = missed(scene, right, later, answer, miss or "nothing_held")
        gone = told.story["causes"][-1]
        assert (gone["how"], gone["reason"]) == ("source_gone", "node_left")
        assert (gone["ended_seq"], gone["blocks"]) == (left.seq, BLOCKS)
        assert gone["before_ms"] == gone["wanted_ms"] - left.stored_ms > 0
        gone_for = duration(gone["before_ms"])
        assert f"p1 was declared gone {gone_for} before it was wanted" in told.verdict
        assert "look at the process and the log of p1" in told.verdict
        scene.d0.ask("reset")


def source_gone_by_a_clean_stop(scene: Scene, right: EngineProcess) -> None:
    text = prompt(2_500, PROMPT)
    scene.hold("stop-p", text)
    scene.p0.stop()
    seen = scene.plane.wait_for(
        lambda seen: [one for one in seen if isinstance(one.event, NodeClosed)], "p0's good-bye"
    )
    (closed,) = [one for one in seen if isinstance(one.event, NodeClosed)]
    scene.plane.wait_projected()
    told = missed(scene, right, text, scene.d0.run("stop-d", text), "nothing_held")
    gone = told.cause
    assert (gone["how"], gone["reason"], gone["source"]) == ("source_gone", "node_closed", "p0")
    assert (gone["ended_seq"], gone["ended_ms"]) == (closed.seq, closed.stored_ms)
    assert f"p0 was stopped {duration(gone['before_ms'])} before it was wanted" in told.verdict
