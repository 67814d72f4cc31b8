"""When a request that follows a prefill begins to load: the engine thread's side."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.unit.connector.pull_desk import HASHES, Desk, hint
from tests.unit.connector.support import BLOCK, tracked

from kvferry.node.export.published import (
    COMPLETE,
    ENDED,
    LAST,
    OTHER,
    PAUSED,
    RUNNING,
    STOPPED,
    UNKNOWN,
    WAITING,
)
from kvferry.node.pull.follower import CLOSED, GONE, REFUSED, UNREACHABLE, Following
from kvferry_connectors.vllm.handovers import ARRIVAL_S, Step, next_step
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import PullState, Tracked


def following(state: str, ready: int = 0, detail: str = "") -> Following:
    one = Following(threading.Condition(), "127.0.0.1:9", "i", "h", 8, HASHES[7])
    one.ready, one.detail, one.state = ready, detail, state
    return one


def step(state: str, ready: int = 0, *, local: int = 0, detail: str = "", **options: Any) -> Any:
    one = following(state, ready, detail)
    return next_step(one, Options(**options), local, 8, time.monotonic())


@pytest.mark.parametrize("state", ["", UNKNOWN, WAITING])
def test_it_waits_without_blocks_until_the_prefill_is_under_way(state: str) -> None:
    assert step(state) == (Step.WAIT, "")
    assert step(state, handover_start=0.0) == (Step.WAIT, "")


def test_it_begins_at_the_configured_share() -> None:
    assert step(RUNNING, 3)[0] is Step.WAIT
    assert step(RUNNING, 4)[0] is Step.TAKE
    assert step(RUNNING, 1, handover_start=0.0)[0] is Step.TAKE
    assert step(RUNNING, 7, handover_start=1.0)[0] is Step.WAIT
    # Of what this engine lacks: four blocks of which two are ready.
    assert step(RUNNING, 5, local=4)[0] is Step.WAIT
    assert step(RUNNING, 6, local=4)[0] is Step.TAKE
    assert step(RUNNING, 4, local=4, handover_start=0.0)[0] is Step.WAIT


@pytest.mark.parametrize("state", [LAST, COMPLETE])
def test_it_begins_at_the_latest_with_the_last_part(state: str) -> None:
    assert step(state, 0, handover_start=1.0)[0] is Step.TAKE


@pytest.mark.parametrize(
    ("state", "miss"),
    [
        (OTHER, "diverged"),
        (PAUSED, "paused"),
        (STOPPED, "node_left"),
        (GONE, "node_left"),
        (CLOSED, "aborted"),
        (UNREACHABLE, "peer_unreachable"),
        (ENDED, "not_offered"),
    ],
)
def test_a_prefill_that_is_lost_has_a_name(state: str, miss: str) -> None:
    assert step(state) == (Step.LOST, miss)


def test_refusals_keep_their_reason() -> None:
    assert step(REFUSED, detail="incarnation: i lives now") == (Step.LOST, "node_left")
    assert step(REFUSED, detail="space_mismatch: x") == (Step.LOST, "space_mismatch")
    assert step(REFUSED, detail="protocol: y") == (Step.LOST, "bad_hint")


def test_what_an_ended_prefill_got_done_is_taken() -> None:
    assert step(ENDED, 3) == (Step.TAKE, "")
    assert step(ENDED, 3, local=3) == (Step.LOST, "not_offered")


def test_a_request_that_never_arrives_is_given_up() -> None:
    one = following(UNKNOWN)
    one.unknown_since_s = 100.0
    assert next_step(one, Options(), 0, 8, 100.0 + ARRIVAL_S)[0] is Step.WAIT
    assert next_step(one, Options(), 0, 8, 100.1 + ARRIVAL_S) == (Step.LOST, "not_offered")


def follower(**params: Any) -> Tracked:
    return tracked("r", HASHES, params={"hint": hint(), "follow": "h", **params})


def test_a_followed_prefill_becomes_a_load_that_follows_on() -> None:
    desk = Desk(pin_timeout_ms=1)
    one = desk.begin(follower())
    pull = one.pull
    assert pull is not None
    assert [h.node for h in desk.looker.followed] == ["d0"]
    assert (desk.looker.hints, desk.looker.planned) == ([], [])
    assert desk.pulls.answer(one, 0) is None
    pull.following = following(RUNNING, 3)
    assert desk.pulls.answer(one, 0) is None
    pull.following.ready = 4
    assert desk.pulls.answer(one, 0) == 8 * BLOCK
    assert desk.pulls.answer(one, 0) == 8 * BLOCK
    job = desk.pulls.commit(one, 0, list(range(8)))
    assert (job.follow, job.address, len(job.hashes)) == ("h", "", 8)
    assert desk.looker.left == ["life.1"]
    desk.pulls.announce(one)
    (event,) = desk.facts()
    assert (event.basis, event.granted, event.source) == ("handover", 8, "d0")


def test_a_load_by_hint_follows_nothing() -> None:
    desk = Desk()
    one = desk.begin(follower(follow=""))
    desk.found(one, 8)
    assert desk.pulls.commit(one, 0, list(range(8))).follow == ""


def test_an_ended_prefill_grants_what_it_got_done() -> None:
    desk = Desk()
    one = desk.begin(follower())
    assert one.pull is not None
    one.pull.following = following(ENDED, 5)
    assert desk.pulls.answer(one, 2 * BLOCK) == 3 * BLOCK


def test_who_has_it_all_waits_for_nobody() -> None:
    desk = Desk()
    one = desk.begin(follower())
    assert desk.pulls.answer(one, 7 * BLOCK) == 0
    assert (one.miss, desk.looker.left, desk.looker.freed) == ("local", ["life.1"], 1)


def test_a_lost_prefill_makes_room_for_a_plan() -> None:
    desk = Desk()
    one = desk.begin(follower())
    pull = one.pull
    assert pull is not None
    pull.following = following(GONE)
    assert desk.pulls.answer(one, 0) is None
    assert (desk.looker.planned, pull.basis, pull.miss) == ([pull], "", "node_left")
    assert pull.state is PullState.LOOKING
    desk.found(one, 6)
    assert desk.pulls.answer(one, 0) == 6 * BLOCK
    assert desk.pulls.commit(one, 0, list(range(6))).follow == ""


def test_without_a_coordinator_a_lost_prefill_is_computed_here() -> None:
    desk = Desk()
    desk.looker.plans = False
    one = desk.begin(follower())
    assert one.pull is not None
    one.pull.following = following(UNREACHABLE)
    assert desk.pulls.answer(one, 0) == 0
    assert (one.miss, desk.looker.freed) == ("peer_unreachable", 1)


def test_the_wait_for_a_prefill_ends() -> None:
    desk = Desk(handover_timeout_ms=60_000)
    one = desk.begin(follower())
    pull = one.pull
    assert pull is not None
    pull.following = following(RUNNING, 1)
    assert pull.answer_by > time.monotonic() + 30
    assert desk.pulls.answer(one, 0) is None
    pull.answer_by = time.monotonic()
    assert desk.pulls.answer(one, 0) == 0
    assert (one.miss, desk.looker.freed) == ("prefill_late", 1)


@pytest.mark.parametrize("raw", [None, {"v": 1}, "x"])
def test_a_prefill_is_followed_nowhere_without_a_genuine_hint(raw: Any) -> None:
    desk = Desk()
    desk.begin(follower(hint=raw))
    assert desk.looker.followed == []


def test_observing_follows_nothing() -> None:
    desk = Desk()
    one = desk.begin(follower(), "observe")
    assert desk.looker.followed == []
    assert one.miss == "observe"
