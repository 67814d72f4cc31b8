"""A request that is told to wait asks again, and is never lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from tests.unit.connector.support import chain, tracked

from kvferry.core.messages import Candidate, PlanAnswer, PlanRequest
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.vllm.looking import Looker
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

BEST = Candidate(node="d0", address="a:1", incarnation="i", blocks=8, predicted_ms=3.0)


class Plans:
    """A coordinator whose answers the test gives, and a clock that it moves."""

    def __init__(self) -> None:
        self.answers: list[tuple[PlanAnswer | None, str]] = []
        self.asked: list[PlanRequest] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.room = True

    def ask(self, request: PlanRequest, done: Any) -> None:
        self.asked.append(request)
        done(*self.answers.pop(0))

    def later(self, after_ms: float, act: Callable[[], None]) -> bool:
        if self.room:
            self.timers.append((after_ms, act))
        return self.room


class Scene:
    def __init__(self) -> None:
        self.plans, self.outbox = Plans(), Outbox()
        self.pinned: list[Pull] = []
        plans: Any = self.plans
        pool: Any = SimpleNamespace(submit=self._submit)
        self.looker = Looker(Options(), self.outbox, plans, pool, block_size=32, ranks=1)

    def _submit(self, act: Any, *args: Any) -> Future[None]:
        self.pinned.append(args[1])
        return Future()

    def begin(self, *answers: PlanAnswer | None) -> tuple[Tracked, Pull]:
        self.plans.answers = [(one, "" if one is not None else "no_coordinator") for one in answers]
        one = tracked("r", chain("a", 8))
        one.pull = pull = Pull("life.1", time.monotonic(), 0.0)
        joined: Any = SimpleNamespace(node="p0", space="s", reads_host=True)
        pull.joined = joined
        assert self.outbox.reserve()
        pull.slots.append(None)
        self.looker.ask_plan(one, pull)
        return one, pull


def wait(ms: float) -> PlanAnswer:
    return PlanAnswer(replica="c", candidates=(BEST,), wait_ms=ms)


def test_it_asks_again_when_told_and_says_how_long_it_has_waited() -> None:
    scene = Scene()
    begun = time.monotonic()
    one, pull = scene.begin(wait(200.0), wait(300.0), PlanAnswer(replica="c", candidates=(BEST,)))
    assert (pull.state, scene.pinned) == (PullState.LOOKING, [])
    assert pull.answer_by > begun + 0.2, "the engine must not give up before it is our turn"
    for told_ms in (200.0, 300.0):
        after_ms, act = scene.plans.timers.pop()
        assert after_ms == told_ms
        act()
    assert [asked.waited_ms for asked in scene.plans.asked] == [0.0, 200.0, 500.0]
    assert {asked.request for asked in scene.plans.asked} == {one.id}
    assert scene.pinned == [pull]
    assert pull.source == "d0"


def test_a_request_that_is_gone_does_not_ask_again() -> None:
    scene = Scene()
    _, pull = scene.begin(wait(200.0))
    pull.cancelled = True
    scene.plans.timers.pop()[1]()
    assert (len(scene.plans.asked), scene.pinned) == (1, [])


def test_where_no_more_may_wait_the_answer_is_taken_as_it_is() -> None:
    scene = Scene()
    scene.plans.room = False
    _, pull = scene.begin(wait(200.0))
    assert scene.pinned == [pull]


def test_a_coordinator_that_is_lost_meanwhile_ends_the_wait() -> None:
    scene = Scene()
    one, pull = scene.begin(wait(200.0), None)
    scene.plans.timers.pop()[1]()
    assert (one.miss, pull.state, scene.outbox.reserved) == ("no_coordinator", PullState.ENDED, 0)
