"""Evicted: reused by the cache, after a lease, after a session, by a pause; and nothing at all."""

from __future__ import annotations

import time

from tests.e2e.conftest import prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.misses.scene import BLOCKS, PROMPT, Scene
from tests.e2e.misses.telling import missed, pulled

from kvferry.replay.words import duration


def never_produced(scene: Scene, right: EngineProcess) -> None:
    text = prompt(1_000, PROMPT)
    first = {"session": "s-never", "turn": 1}
    told = missed(scene, right, text, scene.d0.run("never", text, kvferry=first), "nothing_held")
    assert told.cause["how"] == "never_produced"
    assert "why: never produced: it is the first turn of session s-never" in told.verdict
    other = prompt(1_001, PROMPT)
    told = missed(scene, right, other, scene.d0.run("never-2", other), "nothing_held")
    assert told.cause["how"] == "never_produced"
    assert "no node had offered any part of this prompt before" in told.verdict


def evicted_by_reuse(scene: Scene, right: EngineProcess) -> None:
    for way, miss in (("hint", "not_offered"), ("plan", "nothing_held")):
        text = prompt(1_100 + len(way) + ord(way[0]), PROMPT)
        held = scene.hold(f"reuse-{way}-p", text)
        scene.flood(50_000 + 10 * ord(way[0]))
        gone = scene.gone(held.hint["offer"], "reuse")
        seen_s = time.monotonic()
        scene.plane.wait_projected()
        given = {"hint": held.hint} if way == "hint" else None
        least_ms = (time.monotonic() - seen_s) * 1_000
        told = missed(scene, right, text, scene.d0.run(f"reuse-{way}", text, kvferry=given), miss)
        cause = told.story["causes"][-1]
        assert (cause["how"], cause["reason"], cause["source"]) == ("evicted", "reuse", "p0")
        assert (cause["offer"], cause["blocks"]) == (held.hint["offer"], BLOCKS)
        assert (cause["ended_seq"], cause["ended_ms"]) == (gone.seq, gone.stored_ms)
        assert cause["before_ms"] == cause["wanted_ms"] - gone.stored_ms >= int(least_ms)
        assert f"gone after {duration(gone.stored_ms - cause['offered_ms'])}" in told.verdict
        assert f"{duration(cause['before_ms'])} before it was wanted" in told.verdict
        assert "the engine needed the memory" in told.verdict
        assert "cure: " in told.verdict
        assert "give p0 more KV blocks" in told.verdict
        stages = [one["stage"] for one in told.story["causes"][:-1]]
        assert stages == (["pin"] if way == "hint" else [])


def evicted_after_the_lease_had_ended_by_time(scene: Scene, right: EngineProcess) -> None:
    text, session, retain_ms = prompt(1_200, PROMPT), "s-lease", 1_500
    held = scene.hold("lease-p", text, session=session, turn=1, retain_ms=retain_ms)
    over = scene.lease_over(session)
    scene.flood(51_000)
    gone = scene.gone(held.hint["offer"], "reuse")
    scene.plane.wait_projected()
    answer = scene.d0.run("lease-d", text, kvferry={"session": session, "turn": 2})
    told = missed(scene, right, text, answer, "nothing_held")
    cause = told.cause
    assert (cause["how"], cause["reason"], cause["lease_reason"]) == ("evicted", "reuse", "expired")
    assert (cause["ended_ms"], cause["lease_ended_ms"]) == (gone.stored_ms, over.stored_ms)
    assert over.stored_ms - cause["offered_ms"] >= retain_ms * 0.9
    earlier = duration(gone.stored_ms - over.stored_ms)
    assert f"its lease had ended {earlier} earlier: its time was over" in told.verdict
    assert "leases in GPU memory 20 blocks" in told.text, "the lease is part of the story"


def evicted_after_the_session_had_ended(scene: Scene, right: EngineProcess) -> None:
    text, session = prompt(1_300, PROMPT), "s-end"
    held = scene.hold("end-p", text, session=session, turn=1, retain_ms=60_000)
    last = {"session": session, "turn": 2, "end": True}
    scene.p0.run("end-last", prompt(1_301, 40), tokens=2, kvferry=last)
    scene.flood(52_000)
    scene.gone(held.hint["offer"], "reuse")
    scene.plane.wait_projected()
    answer = scene.d0.run("end-d", text, kvferry={"session": session, "turn": 3})
    cause = (told := missed(scene, right, text, answer, "nothing_held")).cause
    assert (cause["how"], cause["reason"]) == ("evicted", "reuse")
    assert cause["lease_reason"] == "session_end"
    assert "the session ended" in told.verdict
    of_session = scene.explain(session)
    assert of_session.startswith(f"session {session}\nof requests ")
    assert f"d0, request {answer.report['request']}: evicted: p0 had offered" in of_session
    assert "the client said that it is over" in of_session


def a_longer_run_covers_a_shorter_one_until_it_goes_too(scene: Scene, right: EngineProcess) -> None:
    text = prompt(1_400, PROMPT)
    short = scene.hold("short-p", text[: PROMPT // 2])
    whole = scene.hold("whole-p", text)
    scene.gone(short.hint["offer"], "superseded")
    scene.flood(53_000)
    scene.gone(whole.hint["offer"], "reuse")
    answer = scene.d0.run("super-d", text, kvferry={"hint": short.hint})
    told = missed(scene, right, text, answer, "not_offered")
    cause = told.story["causes"][-1]
    assert (cause["how"], cause["reason"]) == ("evicted", "reuse")
    assert (cause["offer"], cause["blocks"]) == (whole.hint["offer"], BLOCKS)


def evicted_by_pause(scene: Scene, right: EngineProcess) -> None:
    text = prompt(1_500, PROMPT)
    held = scene.hold("pause-p", text)
    assert scene.plane.cli("pause", "--node", "p0").returncode == 0
    scene.p0.until("mode", lambda mode: mode == "paused")
    scene.p0.run("pause-step", prompt(1_501, 5), tokens=2)
    gone = scene.gone(held.hint["offer"], "paused")
    answer = scene.d0.run("pause-d", text, kvferry={"hint": held.hint})
    assert scene.plane.cli("resume", "--node", "p0").returncode == 0
    scene.p0.until("mode", lambda mode: mode == "on")
    told = missed(scene, right, text, answer, "paused")
    failed, cause = told.story["causes"]
    assert (failed["how"], failed["stage"], failed["reason"]) == (
        "transfer_failed", "pin", "refused"
    )  # fmt: skip
    assert (cause["how"], cause["reason"]) == ("evicted", "paused")
    assert (cause["ended_seq"], cause["ended_ms"]) == (gone.seq, gone.stored_ms)
    assert "kvferry is paused" in told.verdict
    assert "`kvferry resume` lets p0 offer again" in told.verdict


def the_same_without_a_cause_pulls(scene: Scene, right: EngineProcess) -> None:
    """The control of all causes above: held, not evicted, not paused, and asked for."""
    text, session = prompt(1_600, PROMPT), "s-control"
    held = scene.hold("control-p", text, session=session, turn=1)
    scene.plane.wait_projected()
    for way, given in (("hint", {"hint": held.hint}), ("plan", {"session": session, "turn": 2})):
        pulled(scene, right, text, scene.d0.run(f"control-{way}", text, kvferry=given))
        scene.d0.ask("reset")
