"""The scheduler's side: what is claimed, when it is ordered, and what its reply says.

Requests and steps are in the shapes that vLLM 0.32 hands over; real engines are in
``tests/tilert/test_prefill_engines.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.tilert.caches import EngineCache

from kvferry.core.events import Event, SendBegan, SendEnded
from kvferry.errors import ConfigError
from kvferry.node.outbox.items import Waiting
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.tilert.claims import Claim
from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.fitting import Fit, fit
from kvferry_connectors.tilert.metadata import SendOrder, TileRTMetadata
from kvferry_connectors.tilert.options import parse
from kvferry_connectors.tilert.outcomes import RankOutcome, SendOutcome, joined
from kvferry_connectors.tilert.profiles import BF16, Profile
from kvferry_connectors.tilert.recording import Recording, open_recording
from kvferry_connectors.tilert.reports import Inbox, Reporter
from kvferry_connectors.tilert.scheduler import SchedulerSide
from kvferry_connectors.vllm import neighbours

WAIT_S = 30.0
SMALL = {"name": "small", "layers": 2, "version": 900}
MARK = {"tilert": {"host": "n0", "port": 6000, "rid": "named"}}
BLOCK_BYTES = 64 * 1152 + 8448
"""Of one layer of :data:`SMALL` in bfloat16."""


def fitted() -> Fit:
    return fit(
        Profile(name="small", layers=2, version=900),
        EngineCache(Profile(name="small", layers=2, version=900), BF16).config,
    )


class Manager:
    """Blocks of every request."""

    def get_block_ids(self, request: str) -> tuple[list[int], ...]:
        return ([4, 2, 7],)


class Told(Recording):
    """Keeps the outcomes too."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox)
        self.outcomes: list[SendOutcome] = []

    def ended(self, claim: Claim, outcome: SendOutcome) -> None:
        super().ended(claim, outcome)
        self.outcomes.append(outcome)


class Rig:
    """A scheduler's side and the workers' end of its inbox."""

    def __init__(self, found: Fit | SendRefused, ranks: int, **options: Any) -> None:
        parsed, _ = parse({"profile": SMALL, **options})
        self.side = SchedulerSide(parsed, found, ranks=ranks)
        self.side.bind(Manager())
        self.outbox = Outbox()
        self.kept: list[Event] = []
        self.side.recording = self.recording = Told(self.outbox)
        self.told = self.recording.outcomes
        self.reporter = Reporter()

    def request(self, name: str, params: Any = MARK, tokens: int = 150, **more: Any) -> Any:
        made = SimpleNamespace(
            request_id=name,
            kv_transfer_params=params,
            prompt_token_ids=list(range(tokens)),
            num_prompt_tokens=tokens,
            num_computed_tokens=0,
            sampling_params=SimpleNamespace(repetition_penalty=1.0),
            status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
        )
        made.__dict__.update(more)
        self.side.on_new_request(made)
        return made

    def step(self, **scheduled: int) -> TileRTMetadata:
        return self.side.build_meta(SimpleNamespace(num_scheduled_tokens=scheduled))

    def ordered(self, request: Any) -> SendOrder:
        """The order of a request that is computed in one step."""
        assert self.side.may_start(request)
        meta = self.step(**{request.request_id: request.num_prompt_tokens})
        self.reporter.to = meta.report_to
        (order,) = meta.orders
        return order

    def tell(self, request: str, state: str = "sent", *, rank: int = 0, reason: str = "") -> None:
        detail = f"because {reason}" if reason else ""
        self.reporter.tell(
            RankOutcome(
                request=request, rank=rank, state=state, reason=reason, detail=detail, bytes=5
            )
        )

    def facts(self) -> list[Event]:
        """What was recorded since the last call."""
        taken = self.outbox.take_facts(1000)
        self.kept += [one.event for one in taken if isinstance(one, Waiting)]
        return self.kept

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def one(found: Fit | SendRefused | None = None, *, ranks: int = 1, **options: Any) -> Rig:
        made.append(Rig(found or fitted(), ranks, **options))
        return made[-1]

    yield one
    for rig in made:
        rig.reporter.close()
        rig.side.close()
        # Whatever a test did: each send that began has ended, once.
        facts = rig.facts()
        began = [one.send for one in facts if isinstance(one, SendBegan)]
        ended = [one.send for one in facts if isinstance(one, SendEnded)]
        assert sorted(began) == sorted(ended)
        assert len(set(ended)) == len(ended) == len(rig.told)
        assert rig.outbox.reserved == 0


def test_an_unmarked_request_leaves_no_trace(make: Callable[..., Rig]) -> None:
    rig = make()
    request = rig.request("plain", {"kvferry": {}})
    assert rig.side.may_start(request)
    assert rig.step(plain=150).orders == []
    assert rig.side.finished(request) is None
    assert (rig.told, rig.side._inbox) == ([], None)


def test_the_step_that_completes_the_prompt_orders_the_send(make: Callable[..., Rig]) -> None:
    rig = make()
    request = rig.request("r1")
    assert rig.side.may_start(request)
    assert rig.step(r1=64).orders == []
    request.num_computed_tokens = 64
    assert rig.step(other=5).orders == []
    assert rig.step(r1=64).orders == []
    request.num_computed_tokens = 128
    meta = rig.step(r1=22)
    (order,) = meta.orders
    assert (order.rid, order.host, order.port) == ("named", "n0", 6000)
    assert (order.tokens, order.last_prompt_token, order.block_ids) == (150, 149, ((4, 2, 7),))
    assert Path(meta.report_to).is_socket()
    assert rig.step(r1=1).orders == []  # Once.


def test_a_preempted_request_is_ordered_when_its_prompt_is_complete_again(
    make: Callable[..., Rig],
) -> None:
    rig = make()
    request = rig.request("r1")
    assert rig.side.may_start(request)
    rig.step(r1=100)
    request.num_computed_tokens = 100
    rig.step()  # Preempted: it starts anew.
    request.num_computed_tokens = 0
    assert rig.side.may_start(request)
    assert rig.step(r1=100).orders == []
    request.num_computed_tokens = 100
    assert len(rig.step(r1=50).orders) == 1


def test_the_nodes_penalty_needs_the_prompts_ids(make: Callable[..., Rig]) -> None:
    rig = make()
    assert rig.ordered(rig.request("r1")).prompt_token_ids == ()
    penalised = SimpleNamespace(repetition_penalty=1.1)
    order = rig.ordered(rig.request("r2", tokens=3, sampling_params=penalised))
    assert order.prompt_token_ids == (0, 1, 2)


def test_the_name_is_the_routers_where_the_mark_has_none(make: Callable[..., Rig]) -> None:
    rig = make()
    name = "chatcmpl-agent-cafe-1a2b3c4d"
    assert rig.ordered(rig.request(name, {"tilert_host": "n0"})).rid == "agent"


def test_the_reply_says_what_is_known_by_then(make: Callable[..., Rig]) -> None:
    rig = make(ranks=2)
    early, late, failed = (rig.request(name) for name in ("early", "late", "failed"))
    for request in (early, late, failed):
        rig.ordered(request)
    rig.tell("late", rank=0)
    rig.tell("late", rank=1)
    rig.tell("failed", "refused", rank=1, reason="busy")
    rig.until(lambda: bool(rig.side._sending["failed"].parts) and len(rig.told) == 1)
    target = {"rid": "named", "target": "n0:6000"}
    assert rig.side.finished(early) == {"tilert": {**target, "state": "sending"}}
    assert rig.side.finished(late) == {"tilert": {**target, "state": "sent"}}
    assert rig.side.finished(failed) == {
        "tilert": {**target, "state": "refused", "reason": "busy", "detail": "because busy"}
    }
    rig.tell("failed", rank=0)
    rig.tell("early", rank=0)
    rig.tell("early", rank=1)
    rig.until(lambda: len(rig.told) == 3)
    ends = {told.request: (told.state, told.reason, told.bytes) for told in rig.told}
    assert ends["late"] == ("sent", "", 10)
    assert ends["failed"][:2] == ("refused", "busy")
    assert ends["early"][0] == "sent"


@pytest.mark.parametrize(
    ("params", "more", "reason"),
    [
        ({"tilert": {"host": "n0", "prot": 1}}, {}, "bad_mark"),
        (MARK, {"prompt_token_ids": None}, "no_token_ids"),
    ],
)
def test_a_claim_that_cannot_be_sent_is_refused_and_computed_all_the_same(
    make: Callable[..., Rig], params: Any, more: dict[str, Any], reason: str
) -> None:
    rig = make()
    request = rig.request("r1", params, **more)
    assert rig.side.may_start(request)
    assert rig.step(r1=150).orders == []
    said = rig.side.finished(request)
    assert said is not None
    assert (said["tilert"]["state"], said["tilert"]["reason"]) == ("refused", reason)
    assert [told.reason for told in rig.told] == [reason]


def test_an_unfit_model_refuses_every_claim(make: Callable[..., Rig]) -> None:
    rig = make(SendRefused("model_unfit", "it is a Llama"))
    request = rig.request("r1")
    assert rig.side.may_start(request)
    assert rig.step(r1=150).orders == []
    said = rig.side.finished(request)
    assert said is not None
    assert (said["tilert"]["reason"], said["tilert"]["detail"]) == ("model_unfit", "it is a Llama")


def test_requests_wait_for_staging_memory_and_take_it_as_sends_end(
    make: Callable[..., Rig],
) -> None:
    rig = make(staging_bytes=2 * 3 * BLOCK_BYTES, staging_wait_ms=600_000)
    first, second = rig.request("first"), rig.request("second")
    other = rig.request("other", {})
    rig.ordered(first)
    assert not rig.side.may_start(second)
    assert rig.side.may_start(other)
    rig.tell("first", "refused", reason="unreachable")
    rig.until(lambda: rig.side.may_start(second))
    rig.side.finished(first)
    assert len(rig.step(second=150).orders) == 1


def test_a_request_does_not_wait_for_ever(make: Callable[..., Rig]) -> None:
    rig = make(staging_bytes=BLOCK_BYTES, staging_wait_ms=1)
    first, second = rig.request("first"), rig.request("second")
    rig.ordered(first)
    rig.until(lambda: rig.side.may_start(second))
    assert rig.step(second=150).orders == []
    said = rig.side.finished(second)
    assert said is not None
    assert said["tilert"]["reason"] == "staging_full"
    assert "staging_wait_ms" in said["tilert"]["detail"]


def test_aborts_cancel_what_was_ordered_and_forget_what_was_not(
    make: Callable[..., Rig],
) -> None:
    rig = make()
    before, after, done = (rig.request(name) for name in ("before", "after", "done"))
    assert rig.side.may_start(before)
    rig.ordered(after)
    rig.ordered(done)
    rig.tell("done")
    rig.until(lambda: len(rig.told) == 1)
    for request in (before, after, done):
        request.status.name = "FINISHED_ABORTED"
        rig.side.finished(request)
    assert [told.reason for told in rig.told[1:]] == ["cancelled"]
    assert rig.step().cancels == ["after"]
    assert rig.step().cancels == []
    assert rig.side._turns.held == 2  # Of after, until its end is told, and of done, at next look.
    rig.side._take_back()
    assert rig.side._turns.held == 1


def test_a_send_that_nobody_tells_of_gives_its_turn_back_at_last(
    make: Callable[..., Rig],
) -> None:
    rig = make()
    rig.ordered(rig.request("r1"))
    rig.side._take_back()
    assert rig.side._turns.held == 1
    rig.side._sending["r1"].due = time.monotonic() - 1
    rig.side._take_back()
    assert (rig.side._turns.held, rig.side._sending) == (0, {})
    assert [told.reason for told in rig.told] == ["untold"]
    rig.tell("r1")  # Too late.


def test_sends_are_recorded_with_their_lease_and_how_far_they_came(
    make: Callable[..., Rig],
) -> None:
    rig = make()
    mark = {**MARK["tilert"], "slot": "t0", "fence": 7, "turn": "turn-1"}
    rig.ordered(rig.request("sent", {"tilert": mark}))
    rig.tell("sent")
    rig.until(lambda: len(rig.told) == 1)
    rig.request("bad", {"tilert": {"host": "n0", "prot": 1}})
    began, ended, bad_began, bad_ended = rig.facts()
    assert isinstance(began, SendBegan)
    assert (began.request, began.rid, began.target) == ("sent", "named", "n0:6000")
    assert (began.slot, began.fence, began.external_id) == ("t0", 7, "turn-1")
    assert began.tokens == 150
    assert isinstance(ended, SendEnded)
    assert (ended.send, ended.bytes, ended.stage, ended.reason) == (began.send, 5, "", "")
    assert ended.waited_ms > 0
    assert isinstance(bad_began, SendBegan)
    assert (bad_began.target, bad_began.fence) == ("", 0)
    assert isinstance(bad_ended, SendEnded)
    assert (bad_ended.stage, bad_ended.reason) == ("claim", "bad_mark")


def test_what_is_under_way_at_the_engines_end_is_recorded_as_closed(
    make: Callable[..., Rig],
) -> None:
    rig = make()
    rig.ordered(rig.request("ordered"))
    rig.request("waiting")
    rig.side.close()
    assert {told.request: told.reason for told in rig.told} == {
        "ordered": "closed",
        "waiting": "closed",
    }


def test_a_ledger_that_is_behind_leaves_a_send_out_as_a_whole(
    make: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    rig = make()
    while rig.outbox.reserve():
        pass
    held = rig.outbox.reserved
    rig.ordered(rig.request("r1"))
    rig.tell("r1")
    rig.until(lambda: len(rig.told) == 1)
    assert rig.facts() == []
    assert "the ledger is behind" in caplog.text
    rig.told.clear()
    assert rig.outbox.reserved == held
    for _ in range(held):
        rig.outbox.unreserve()


def test_an_engine_has_one_node_in_the_ledger(caplog: pytest.LogCaptureFixture) -> None:
    def engine(name: str) -> Any:
        return SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id=name))

    options, _ = parse({"profile": SMALL})
    assert open_recording(options, engine("e0")) is None
    outbox = Outbox()
    neighbours.offer(engine("e0"), outbox)
    try:
        asked, _ = parse({"profile": SMALL, "nats_url": "nats://127.0.0.1:1"})
        shared = open_recording(asked, engine("e0"))
        assert shared is not None
        assert shared._outbox is outbox
        assert "nats_url is ignored" in caplog.text
        assert open_recording(options, engine("e1")) is None
    finally:
        neighbours.withdraw(outbox)
    alone = open_recording(asked, engine("e0"))
    assert alone is not None
    assert alone._outbox is not outbox
    alone.close()
    assert "kvferry-agent" not in {thread.name for thread in threading.enumerate()}


def test_an_inbox_that_is_gone_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[RankOutcome] = []
    inbox, reporter = Inbox(heard.append), Reporter()
    reporter.to = inbox.path
    outcome = RankOutcome(request="r", rank=0, state="sent", detail="x" * 5000)
    reporter.tell(outcome)
    deadline = time.monotonic() + WAIT_S
    while not heard:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert len(heard[0].detail) == 1000
    inbox.close()
    assert not Path(inbox.path).parent.exists()
    reporter.tell(outcome)
    reporter.close()
    assert "is not told" in caplog.text
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"kvferry-tilert-inbox", "kvferry-tilert-reports"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "profile"),
        ({"profile": "dsv32", "transport": "mooncake"}, "--transport nixl"),
        ({"profile": "dsv32", "staging_device": "tpu"}, "staging_device='tpu'"),
        ({"profile": "dsv32", "senders": 0}, "senders=0"),
        ({"profile": "dsv32", "send_timeout_ms": 120_001}, "120000"),
        ({"profile": "dsv32", "staging_wait_ms": -1}, "negative"),
        ({"profile": "dsv32", "sender": 8}, "sender"),
        ({"profile": "dsv32", "nats_credentials": {"user": "x"}}, "nats_url"),
        (
            {"profile": "dsv32", "nats_url": "nats://n", "nats_credentials": {"pass": "x"}},
            "'pass'",
        ),
        ({"profile": "nsv32"}, "dsv32"),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(given)


def test_parts_of_two_admissions_are_not_one_send() -> None:
    first = RankOutcome(request="r", rank=0, state="sent", bytes=3, generation=7)
    for generation, state in ((7, "sent"), (8, "refused")):
        second = RankOutcome(request="r", rank=1, state="sent", bytes=4, generation=generation)
        whole = joined([first, second], rid="r", target="n:1", tokens=5)
        assert (whole.state, whole.bytes) == (state, 7)
    assert whole.reason == "not_admitted"


def test_a_mark_says_for_how_long_the_node_may_be_written_to(make: Callable[..., Rig]) -> None:
    rig = make()
    within = {"tilert": {**MARK["tilert"], "within_s": 60.0}}
    assert 0.0 < rig.ordered(rig.request("in-time", within)).within_s < 60.0
    assert rig.ordered(rig.request("unbounded")).within_s == 0.0
    brief = {"tilert": {**MARK["tilert"], "within_s": 0.001}}
    late = rig.request("late", brief)
    assert rig.side.may_start(late)
    time.sleep(0.002)  # What is tested is that time passes.
    assert rig.step(late=150).orders == []
    assert [one.reason for one in rig.told] == ["late"]
    assert rig.side.finished(late)["tilert"]["reason"] == "late"  # type: ignore[index]
    for value in (-1.0, float("inf")):
        never = rig.request("never", {"tilert": {**MARK["tilert"], "within_s": value}})
        assert rig.side.finished(never)["tilert"]["reason"] == "bad_mark"  # type: ignore[index]
