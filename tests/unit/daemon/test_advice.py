"""What nodes are advised to expect of sessions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from tests.unit.daemon.support import SPACE, FakeNode, pulled, running, settled, until

from kvferry.core.advising import pair_rest, saved
from kvferry.core.cost import PrefillCost
from kvferry.core.cost_fit import Fit
from kvferry.core.events import AnyEvent, NodeClosed, RequestEnded
from kvferry.core.messages import SAVED_UNKNOWN, Advice, advice_subject, encode
from kvferry.core.retention_gaps import GapModel, prior
from kvferry.daemon import advice
from kvferry.ledger.memory import MemoryLog
from kvferry.node.plans.advice import AdviceView

SUBJECT = advice_subject(SPACE)


@contextlib.asynccontextmanager
async def listening(log: MemoryLog, node: str = "") -> AsyncIterator[AdviceView]:
    view = AdviceView(node)
    stop = await log.subscribe(SUBJECT, view.heard)
    try:
        yield view
    finally:
        await stop()


def turns(number: int) -> list[RequestEnded]:
    """Turn ``number`` of some sessions."""
    return [
        RequestEnded(request=f"r{n}-{number}", external_id=f"r{n}-{number}", session=f"s{n}")
        for n in range(3)
    ]


async def test_nodes_are_advised_by_the_leader_when_one_joins() -> None:
    log = MemoryLog()
    d0, p0 = FakeNode(log, "d0"), FakeNode(log, "p0")
    async with running(log) as coordinator, listening(log) as view:
        await d0.join()
        await until(lambda: view.term, "advice")
        assert view.gaps.samples == 0
        await d0.facts(*turns(1))
        stored_ms = time.time() * 1000
        await until(lambda: time.time() * 1000 > stored_ms + 2, "the store's clock to move on")
        await settled(coordinator, await d0.facts(*turns(2)))
        await p0.join()
        await until(lambda: view.gaps.samples, "advice with what was learned")
        assert view.gaps.samples == 3
        assert view.gaps.first != prior().first


async def test_who_does_not_lead_gives_no_advice() -> None:
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log) as coordinator, listening(log) as view:
        await d0.join()
        await until(lambda: view.term, "advice")
        heard: list[bytes] = []

        async def note(subject: str, data: bytes, reply: object) -> None:
            heard.append(data)

        stop = await log.subscribe(SUBJECT, note)
        silent = advice.AdviceTeller("c-9", coordinator.projector, log, leads=lambda space: 0)
        await silent.tell()
        assert heard == []
        loud = advice.AdviceTeller("c-9", coordinator.projector, log, leads=lambda space: 7)
        await loud.tell()
        await until(lambda: heard, "the negative control")
        await stop()


def told(term: int = 1, **more: object) -> bytes:
    given: dict[str, object] = {"replica": "c0", "gaps": prior(), **more}
    return encode(Advice(term=term, **given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "odd",
    [b"garbage", told(9, gaps=GapModel(first=(1.0,), later=(1.0,)))],
    ids=["garbage", "other bins"],
)
async def test_what_cannot_be_used_changes_nothing(odd: bytes) -> None:
    view = AdviceView()
    await view.heard(SUBJECT, told(2, saved=(5.0, 1.0)), None)
    await view.heard(SUBJECT, odd, None)
    assert (view.term, view.gaps, view.saved_ms(1_000)) == (2, prior(), 5.0)


async def test_a_deposed_leader_is_not_heard() -> None:
    view = AdviceView()
    await view.heard(SUBJECT, told(2, saved=(5.0, 0.0)), None)
    await view.heard(SUBJECT, told(1, saved=(9.0, 0.0)), None)
    assert view.saved_ms(1_000) == 5.0
    await view.heard(SUBJECT, told(3, saved=(9.0, 0.0)), None)
    assert view.saved_ms(1_000) == 9.0


async def test_a_node_can_tell_what_its_pulls_by_hint_are_thought_to_take() -> None:
    log = MemoryLog()
    d0, p0 = FakeNode(log, "d0"), FakeNode(log, "p0")
    async with running(log) as coordinator, listening(log, "p0") as view:
        await d0.join()
        await p0.join()
        assert view.predicted("d0", 0, 1_000) == (0.0, 0.0), "nothing was learned yet"
        for tokens, total_ms in ((1_024, 20.0), (10_240, 110.0)):
            name = f"p0.{tokens}"
            await p0.facts(*pulled(name, "d0", tokens=tokens, total_ms=total_ms, transfer=name))
        computed = [
            RequestEnded(
                request=f"r{n}", prompt_tokens=n, computed_tokens=n, output_tokens=1,
                prefill_ms=n / 10, ttft_ms=n / 10,
            )
            for n in (500, 1_000, 4_000)
        ]  # fmt: skip
        await settled(coordinator, await p0.facts(*computed))
        loud = advice.AdviceTeller("c-9", coordinator.projector, log, leads=lambda space: 7)
        await loud.tell()
        await until(lambda: view.term == 7, "advice with what was learned")
        space = coordinator.projector.state.spaces[SPACE]
        token_bytes = space.nodes["d0"].block_bytes / space.nodes["p0"].block_size
        (link,) = space.rates.values()
        for start, end in ((0, 1_000), (0, 8_000), (3_000, 8_000)):
            move_ms, recompute_ms = view.predicted("d0", start, end)
            assert move_ms == pytest.approx(link.predict((end - start) * token_bytes))
            assert recompute_ms == pytest.approx(space.prefill["p0"].saved_ms(start, end))
        assert view.predicted("p0", 0, 1_000)[0] == 0.0, "no link is known from there"
        assert view.predicted("d0", 0, 1_000)[0] > 0.0


def test_what_a_hit_spares_grows_with_the_context() -> None:
    cost = PrefillCost()
    for tokens in (500, 1_000, 2_000, 4_000, 8_000):
        for _ in range(5):
            cost.observe(tokens, 0, 3.0 + tokens / 10 + tokens * tokens / 40_000)
    view = AdviceView()
    view._saved = saved([cost])
    for tokens in (1_000, 4_000, 8_000):
        assert view.saved_ms(tokens) == pytest.approx(cost.saved_ms(0, tokens), rel=0.02)
    assert view.saved_ms(8_000) > 8 * view.saved_ms(1_000)
    assert saved([PrefillCost()]) == SAVED_UNKNOWN


def test_what_seems_to_cost_nothing_is_not_worthless() -> None:
    flat = PrefillCost(fit=Fit(n=20, coefficients=[7.0, 0.0, 0.0]))
    assert (flat.saved_ms(0, 1_000) or 0.0) <= 0.0, "else this test says nothing"
    assert saved([flat]) == SAVED_UNKNOWN


async def test_of_two_nodes_that_have_a_session_both_come_to_the_same_keeper() -> None:
    p0, d0 = AdviceView("p0"), AdviceView("d0")
    sessions = [f"s-{number}" for number in range(200)]
    assert not any(p0.kept_there(name, "d0", 10) for name in sessions), "nothing was heard yet"
    for view in (p0, d0):
        await view.heard(SUBJECT, told(host_blocks={"p0": 10, "d0": 10}), None)
    at_d0 = [p0.kept_there(name, "d0", 10) for name in sessions]
    at_p0 = [d0.kept_there(name, "p0", 10) for name in sessions]
    assert at_d0 == [not there for there in at_p0]
    assert 50 < sum(at_d0) < 150


async def test_a_node_without_a_host_tier_keeps_nothing_and_none_without_a_name() -> None:
    view = AdviceView("p0")
    await view.heard(SUBJECT, told(host_blocks={"d0": 10}), None)
    assert view.kept_there("s", "d0", 0)
    assert not view.kept_there("s", "d1", 0)
    assert not view.kept_there("", "d0", 0)
    await view.heard(SUBJECT, told(host_blocks={"p0": 10}), None)
    assert not view.kept_there("s", "p0", 10), "ourselves"


async def test_both_come_to_the_same_keeper_by_what_their_roles_have_together() -> None:
    p0, d0 = AdviceView("p0"), AdviceView("d0")
    host = dict.fromkeys(("p0", "p1", "p2", "d0"), 10)
    roles = {"p0": "prefill", "p1": "prefill", "p2": "prefill", "d0": "decode"}
    for view in (p0, d0):
        await view.heard(SUBJECT, told(host_blocks=host, roles=roles), None)
    sessions = [f"s-{number}" for number in range(400)]
    at_d0 = [p0.kept_there(name, "d0", 10) for name in sessions]
    assert at_d0 == [not d0.kept_there(name, "p0", 10) for name in sessions]
    assert 60 < sum(at_d0) < 140, "a quarter of them"


async def test_advice_names_the_host_tiers_of_nodes_that_are_there() -> None:
    log = MemoryLog()
    d0, p0, gone = FakeNode(log, "d0"), FakeNode(log, "p0"), FakeNode(log, "gone")
    async with running(log) as coordinator, listening(log) as view:
        await d0.join(host_blocks=7, role="decode")
        await gone.join(host_blocks=9)
        await settled(coordinator, await gone.facts(NodeClosed(incarnation=gone.incarnation)))
        await p0.join()
        await until(lambda: view.shares, "advice")
        await until(lambda: view.shares == {"d0": 7}, "advice without who has left")


async def test_nodes_hear_from_where_short_prefixes_are_not_worth_moving() -> None:
    log = MemoryLog()
    nodes = [FakeNode(log, name) for name in ("p0", "d0", "d1")]
    async with running(log, cost="learned") as coordinator, listening(log, "p0") as view:
        for node in nodes:
            await node.join()
        # Computing takes 0.1 ms a token. d0 needs 1 s for whatever it sends, d1 next to nothing.
        facts: list[AnyEvent] = [
            RequestEnded(request=f"q{n}", computed_tokens=n, prefill_ms=n / 10)
            for n in (1_000, 2_000, 4_000) * 4
        ]
        for number, tokens in enumerate((1_024, 2_048, 4_096) * 4):
            for source, total_ms in (("d0", 1_000.0), ("d1", 1.0)):
                facts += pulled(
                    f"{source}-{number}",
                    source,
                    tokens=tokens,
                    total_ms=total_ms,
                    transfer=f"t-{source}-{number}",
                )
        last = await nodes[0].facts(*facts)
        await settled(coordinator, last)
        await coordinator.advice.tell()
        await until(lambda: view.too_dear("d0", 2_048), "advice about d0")
        assert not view.too_dear("d0", 65_536), "long ones are worth it"
        assert not view.too_dear("d1", 2_048)
        assert not view.too_dear("unknown", 16)
        weighed = {name: view.rest(name, 4_096, 4_128) for name in ("d0", "d1", "unknown")}
        assert {name: one is not None and one[0].pays for name, one in weighed.items()} == {
            "d0": False,
            "d1": True,
            "unknown": True,
        }
        space = coordinator.projector.state.spaces[SPACE]
        assert weighed["d0"] == (pair_rest(space, "d0>p0", 4_096, 4_128), view.position)
        other = AdviceView("d1")
        stop = await log.subscribe(SUBJECT, other.heard)
        await coordinator.advice.tell()
        await until(lambda: other.term, "the same advice")
        assert not other.too_dear("d0", 2_048), "that is of another target"
        await stop()
        known = view.term
        await coordinator.stop()
        async with running(log, replica="c-off", cost="off") as careless:
            await until(lambda: careless.decider.leads(SPACE), "another leads")
            await careless.advice.tell()
            await until(lambda: view.term > known, "advice of a leader that weighs nothing")
            assert not view.too_dear("d0", 2_048)
            assert view.rest("d0", 4_096, 4_128) is None
