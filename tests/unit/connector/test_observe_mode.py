"""Observe mode at the target: nothing is pulled, what would have been is recorded, once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.core.cost import MODEL
from kvferry.core.events import FACTS, Requested
from kvferry.core.messages import Candidate, PlanAnswer, PlanRequest
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.hints import Hint, HintBook
from kvferry.node.plans.advice import AdviceView
from kvferry.node.plans.held import HeldView
from kvferry_connectors.vllm.looking import Looker
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.pulls import Pulls
from kvferry_connectors.vllm.tracked import Tracked

BLOCK = 32
KEY = b"k" * 32
SPACE = "tiny-0123456789ab"
HOUR_MS = 4_102_444_800_000
"""A wall clock far ahead."""


class Plans:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.live = True
        self.held = HeldView()
        self.advice = AdviceView("d0")
        self.asked: list[PlanRequest] = []
        self._done: list[Any] = []

    def available(self) -> bool:
        return self.live

    def ask(self, request: PlanRequest, done: Any) -> None:
        self.asked.append(request)
        self._done.append(done)

    def answer(self, answer: PlanAnswer | None, miss: str = "") -> None:
        self._done.pop(0)(answer, miss)


class Target:
    """The pulls of one node, without an engine and without a network."""

    def __init__(self) -> None:
        self.plans = Plans()
        self.outbox = Outbox()
        self.pinned: list[Any] = []
        pool = ThreadPoolExecutor(1)
        client = SimpleNamespace(call=lambda *a, **k: self.pinned.append(a))
        self.hints = HintBook(KEY, SPACE)
        self.joined: Any = SimpleNamespace(
            space=SPACE, node="d0", hints=self.hints, client=client, address="127.0.0.1:1"
        )
        looker = Looker(
            Options(),
            self.outbox,
            self.plans,  # type: ignore[arg-type]
            pool,
            block_size=BLOCK,
            ranks=1,
        )
        self.pulls = Pulls(Options(), self.outbox, looker, block_size=BLOCK, incarnation="i")
        self.pool = pool

    def begin(self, request: Tracked, mode: str = "observe") -> None:
        self.pulls.begin(request, self.joined, mode)

    def admit(self, request: Tracked, local: int = 0) -> None:
        """As the scheduler's hooks do: query, then allocation without a load."""
        request.local_tokens = local
        assert self.pulls.answer(request, local) == 0, "nobody may wait for a plan"
        request.admitted = True
        self.pulls.announce(request)

    def recorded(self) -> list[Requested]:
        events = [item.event for item in self.outbox.take_facts(100)]  # type: ignore[union-attr]
        self.outbox.stored(FACTS, len(events))
        assert all(isinstance(event, Requested) for event in events)
        return events  # type: ignore[return-value]

    def hint(self, hashes: list[bytes], *, tier: str = "cache") -> dict[str, Any]:
        made = Hint("p0", SPACE, "127.0.0.1:9", "inc", "o.1", len(hashes), hashes[-1], HOUR_MS)
        return self.hints.sign(Hint(*(getattr(made, f) for f in made.__struct_fields__[:-1]), tier))


@pytest.fixture
def target() -> Any:
    made = Target()
    yield made
    made.pool.shutdown()
    assert made.pinned == []
    assert made.outbox.reserved == 0


def chain(blocks: int, word: str = "x") -> list[bytes]:
    return [f"{word}{i}".encode().ljust(32, b".") for i in range(blocks)]


def request(blocks: int = 10, hint: Any = None, name: str = "r", tail: int = 3) -> Tracked:
    raw = SimpleNamespace(
        request_id=name,
        kv_transfer_params={"kvferry": {"hint": hint, "session": "s"}},
        block_hashes=chain(blocks),
        num_prompt_tokens=blocks * BLOCK + tail,
    )
    return Tracked(raw, BLOCK, 0.0, True)


def plan(blocks: int, **fields: Any) -> PlanAnswer:
    found = (
        Candidate(node="d1", address="a:1", incarnation="j", blocks=blocks, predicted_ms=3.0),
        Candidate(node="p0", address="b:1", incarnation="k", blocks=4, predicted_ms=2.0),
    )
    settings: dict[str, Any] = {"observed": found, "miss": "observe", "mode": "observe", **fields}
    return PlanAnswer(replica="c", recompute_ms=70.0, **settings)


def test_a_plan_that_comes_after_admission_is_recorded_then(target: Target) -> None:
    one = request()
    target.begin(one)
    target.admit(one)
    assert target.recorded() == []
    target.plans.answer(plan(8))
    (event,) = target.recorded()
    assert (event.miss, event.transfer) == ("observe", "")
    assert (event.source, event.basis, event.granted, event.wanted) == ("d1", "plan", 8, 10)
    assert (event.predicted_ms, event.recompute_ms) == (3.0, 70.0)
    assert (event.options, event.session) == (("d1", "p0"), "s")
    assert one.miss == "observe"
    target.pulls.announce(one, ended=True)
    assert target.recorded() == []


def test_a_plan_that_comes_before_admission_waits_for_the_local_tokens(target: Target) -> None:
    one = request()
    target.begin(one)
    target.plans.answer(plan(8))
    assert target.recorded() == []
    target.admit(one, local=2 * BLOCK)
    (event,) = target.recorded()
    assert (event.miss, event.local_tokens, event.granted) == ("observe", 64, 8)


def test_what_is_here_already_would_not_have_been_pulled(target: Target) -> None:
    one = request()
    target.begin(one)
    target.plans.answer(plan(8))
    target.admit(one, local=8 * BLOCK)
    (event,) = target.recorded()
    assert event.miss == "local"


@pytest.mark.parametrize(("tail", "local", "miss"), [(0, 9, "local"), (0, 8, ""), (1, 9, "")])
def test_the_token_that_is_computed_in_any_case_is_not_worth_a_block(
    target: Target, tail: int, local: int, miss: str
) -> None:
    one = request(10, tail=tail)
    target.begin(one)
    target.plans.answer(plan(10))
    target.admit(one, local=local * BLOCK)
    (event,) = target.recorded()
    assert event.miss == (miss or "observe")


def test_a_request_that_ends_before_its_plan_is_recorded_once(target: Target) -> None:
    one = request()
    target.begin(one)
    target.admit(one)
    target.pulls.announce(one, ended=True)
    target.plans.answer(plan(8))
    (event,) = target.recorded()
    # Nothing waited for the plan, so it was not late: what it would have said is not known.
    assert (event.miss, event.source, event.granted) == ("observe", "", 0)
    assert one.miss == "observe"


def test_a_hint_that_proves_the_prefix_needs_no_plan(target: Target) -> None:
    for tier in ("cache", "observe"):
        one = request(hint=target.hint(chain(6), tier=tier))
        target.begin(one)
        target.admit(one)
        (event,) = target.recorded()
        assert (event.miss, event.source, event.basis) == ("observe", "p0", "hint")
        assert event.granted == 6
    assert target.plans.asked == []


def test_the_offer_that_a_genuine_hint_named_is_recorded_whatever_becomes_of_the_hint(
    target: Target,
) -> None:
    expired = target.hints.sign(Hint("p0", SPACE, "a:1", "inc", "o.2", 6, chain(6)[-1], 1))
    there = HintBook(KEY, "other-0123456789ab")
    apart = there.sign(Hint("p1", "other-0123456789ab", "a:1", "inc", "o.3", 6, b"t" * 32, HOUR_MS))
    for given, offer in (
        (target.hint(chain(6)), "o.1"),
        (expired, "o.2"),
        (apart, "o.3"),
        ({**expired, "mac": ""}, ""),
        (None, ""),
    ):
        one = request(hint=given)
        target.plans.live = False
        target.begin(one)
        target.admit(one)
        assert [event.hinted for event in target.recorded()] == [offer]


def test_what_a_hint_would_have_brought_is_recorded_with_what_was_advised(target: Target) -> None:
    advice = target.plans.advice
    advice._costs = advice._costs._replace(links={"p0": (2.0, 10.0)}, computing=(80.0, 4.0))
    for source, local, numbers in (
        ("p0", 0, (2.0 + 10.0 * 0.192, 80.0 * 0.192 + 4.0 * 0.192**2 / 2)),
        ("p0", 64, (2.0 + 10.0 * 0.128, 80.0 * 0.128 + 4.0 * (0.192**2 - 0.064**2) / 2)),
        ("p9", 0, (0.0, 80.0 * 0.192 + 4.0 * 0.192**2 / 2)),
    ):
        raw = target.hints.sign(
            Hint(source, SPACE, "127.0.0.1:9", "inc", "o.1", 6, chain(6)[-1], HOUR_MS)
        )
        one = request(hint=raw)
        target.begin(one)
        target.admit(one, local=local)
        (event,) = target.recorded()
        assert (event.predicted_ms, event.recompute_ms) == pytest.approx(numbers)
        assert event.model == (MODEL if event.predicted_ms else 0)


def test_a_hint_that_proves_nothing_is_left_to_the_plan(target: Target) -> None:
    one = request(hint=target.hint(chain(6, "y")))
    target.begin(one)
    target.admit(one)
    target.plans.answer(plan(4))
    (event,) = target.recorded()
    assert (event.miss, event.source, event.basis) == ("observe", "d1", "plan")


def test_without_a_source_the_miss_says_why(target: Target) -> None:
    for answer, miss in (
        (PlanAnswer(replica="c", miss="nothing_held", mode="observe"), "nothing_held"),
        (None, "plan_late"),
    ):
        one = request()
        target.begin(one)
        target.admit(one)
        target.plans.answer(answer, "plan_late")
        (event,) = target.recorded()
        assert (event.miss, event.source, event.granted) == (miss, "", 0)
    target.plans.live = False
    one = request()
    target.begin(one)
    target.admit(one)
    assert [event.miss for event in target.recorded()] == ["no_coordinator"]


def test_a_coordinator_that_has_not_heard_of_the_mode_names_candidates(target: Target) -> None:
    one = request()
    target.begin(one)
    target.admit(one)
    target.plans.answer(plan(8, candidates=plan(8).observed, observed=(), miss="", mode="on"))
    (event,) = target.recorded()
    assert (event.miss, event.source) == ("observe", "d1")


def test_an_observing_nodes_hint_is_not_used_where_reuse_is_on(target: Target) -> None:
    one = request(hint=target.hint(chain(6), tier="observe"))
    target.begin(one, mode="on")
    assert len(target.plans.asked) == 1, "the hint was ignored and a plan asked for"
    target.plans.answer(PlanAnswer(replica="c", miss="nothing_held"))
    target.admit(one)
    assert [event.miss for event in target.recorded()] == ["observe"]


def test_two_threads_announce_once(target: Target) -> None:
    for i in range(200):
        one = request(name=f"r{i}")
        target.begin(one)
        one.local_tokens = 0
        together = threading.Barrier(2)

        def answer(together: threading.Barrier = together) -> None:
            together.wait()
            target.plans.answer(plan(8))

        other = threading.Thread(target=answer)
        other.start()
        together.wait()
        target.admit(one)
        other.join()
    events = target.recorded() + target.recorded()
    assert [event.request for event in events] == [f"r{i}" for i in range(200)]
    assert {event.miss for event in events} == {"observe"}
