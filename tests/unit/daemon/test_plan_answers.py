"""Plans: who holds how much, what it costs, and why not."""

from __future__ import annotations

import pytest
from tests.unit.daemon.support import (
    SPACE,
    STRIDE,
    FakeNode,
    ask,
    chain,
    offer,
    plan,
    plan_request,
    pulled,
    running,
    settled,
    until,
)

from kvferry.core.events import Requested, RequestEnded
from kvferry.core.messages import plan_subject
from kvferry.errors import LedgerUnavailable
from kvferry.ledger.memory import MemoryLog

PROMPT = chain("talk", 64)


async def test_the_longest_prefix_first_and_never_the_asker() -> None:
    log = MemoryLog()
    p0, d0, d1 = FakeNode(log, "p0"), FakeNode(log, "d0"), FakeNode(log, "d1")
    for node in (p0, d0, d1):
        await node.join()
    await p0.facts(offer("p.1", PROMPT))
    await d0.facts(offer("d.1", PROMPT[:40]))
    last = await d1.facts(offer("e.1", PROMPT[:16]))
    async with running(log) as coordinator:
        await settled(coordinator, last)
        answer = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert [(one.node, one.blocks) for one in answer.candidates] == [("d0", 40), ("d1", 16)]
        assert answer.candidates[0].incarnation == d0.incarnation
        assert answer.candidates[0].address == "127.0.0.1:7002"
        assert (answer.miss, answer.mode, answer.replica) == ("", "on", coordinator.replica)
        assert answer.position >= last
        other = await plan(log, coordinator, plan_request("p0", chain("other", 64)))
        assert (other.candidates, other.miss) == ((), "nothing_held")
        forked = chain("fork", 64, shared=24, root="talk")
        divergent = await plan(log, coordinator, plan_request("d1", forked))
        assert {(one.node, one.blocks) for one in divergent.candidates} == {("p0", 24), ("d0", 24)}


async def test_misses_name_their_cause() -> None:
    log = MemoryLog()
    p0, d0 = FakeNode(log, "p0"), FakeNode(log, "d0")
    await p0.join()
    await d0.join(backends=("nixl",))
    last = await d0.facts(offer("d.1", PROMPT))
    async with running(log) as coordinator:
        await settled(coordinator, last)

        async def miss(request: object) -> str:
            answer = await plan(log, coordinator, request)  # type: ignore[arg-type]
            assert answer.candidates == ()
            return answer.miss

        assert await miss(plan_request("p9", PROMPT)) == "not_joined"
        assert await miss(plan_request("p0", PROMPT, space="elsewhere")) == "not_joined"
        assert await miss(plan_request("p0", PROMPT[: STRIDE - 1])) == "too_short"
        assert await miss(plan_request("p0", PROMPT)) == "nothing_held", "no common backend"


async def test_a_move_that_costs_more_than_computing_is_too_dear() -> None:
    log = MemoryLog()
    p0, d0 = FakeNode(log, "p0"), FakeNode(log, "d0")
    await p0.join()
    await d0.join()
    last = await d0.facts(offer("d.1", PROMPT))
    async with running(log) as coordinator:
        await settled(coordinator, last)
        unknown = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert [one.node for one in unknown.candidates] == ["d0"]
        assert unknown.candidates[0].predicted_ms == 0.0
        # 1,000 tokens in 100 ms to compute; 1,024 tokens take 10 s to move.
        await p0.facts(
            RequestEnded(request="r1", prompt_tokens=1000, computed_tokens=1000, ttft_ms=100.0)
        )
        last = await p0.facts(*pulled("r2", "d0", tokens=1024, total_ms=10_000.0))
        await settled(coordinator, last)
        dear = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert (dear.candidates, dear.miss) == ((), "too_dear")
        (numbers,) = dear.dear
        assert numbers.node == "d0"
        assert numbers.predicted_ms == pytest.approx(10_000.0, rel=0.05)
        assert numbers.recompute_ms == pytest.approx(102.4, rel=0.05)
        # A link that carries nothing teaches nothing: what is put aside pays for a small trial.
        passed = [
            Requested(
                request=f"q{number}",
                miss="too_dear",
                source="d0",
                predicted_ms=numbers.predicted_ms,
                recompute_ms=numbers.recompute_ms,
            )
            for number in range(250)
        ]
        last = await p0.facts(*passed)
        await settled(coordinator, last)
        probe = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert probe.candidates == (), "one request's worth at most: the link is 100 times too dear"
        last = await p0.facts(*pulled("r3", "d0", tokens=1024, total_ms=300.0, transfer="t.2"))
        last = await p0.facts(*passed)
        await settled(coordinator, last)
        probe = await plan(log, coordinator, plan_request("p0", PROMPT))
        (tried,) = probe.candidates
        assert (tried.node, 0 < tried.limit < 64, tried.blocks) == ("d0", True, tried.limit)
        assert tried.predicted_ms > tried.recompute_ms
        cheap = await plan(log, coordinator, plan_request("d0", PROMPT))
        assert cheap.miss == "nothing_held"
        d1 = FakeNode(log, "d1")
        await d1.join()
        last = await d1.facts(offer("e.1", PROMPT[:40]))
        await settled(coordinator, last)
        weighed = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert [one.node for one in weighed.candidates] == ["d1"], "nobody knows that link yet"
    # Where the leader does not weigh costs the longest is moved, whoever answers.
    async with running(log, replica="c-off", cost="off") as leader:
        await settled(leader, last)
        await until(lambda: leader.decider.leads(SPACE), "it leads")
        async with running(log, replica="c-by", cost="learned") as standby:
            for one in (leader, standby):
                moved = await plan(log, one, plan_request("p0", PROMPT))
                found = [(c.node, c.blocks, c.limit) for c in moved.candidates]
                assert found == [("d0", 64, 0), ("d1", 40, 0)], one.replica


async def test_malformed_requests_are_counted_and_do_not_hurt() -> None:
    log = MemoryLog()
    async with running(log) as coordinator:
        for garbage in (b"", b"\xc1", b"\x93\x01\x02\x03"):
            with pytest.raises(LedgerUnavailable):
                await log.request(plan_subject(coordinator.replica), garbage, 0.3)
        assert coordinator.plans.malformed == 3
        odd = plan_request("p0", PROMPT)
        assert (await plan(log, coordinator, odd)).miss == "not_joined"


async def test_pause_and_observe_of_either_side() -> None:
    log = MemoryLog()
    p0, d0 = FakeNode(log, "p0"), FakeNode(log, "d0")
    await p0.join()
    await d0.join()
    last = await d0.facts(offer("d.1", PROMPT))
    async with running(log) as coordinator:
        await settled(coordinator, last)
        await ask(log, coordinator, verb="pause", node="d0")
        assert (await plan(log, coordinator, plan_request("p0", PROMPT))).miss == "nothing_held"
        await ask(log, coordinator, verb="resume")
        assert (await plan(log, coordinator, plan_request("p0", PROMPT))).miss == ""
        await ask(log, coordinator, verb="pause", node="p0")
        paused = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert (paused.miss, paused.mode, paused.candidates) == ("paused", "paused", ())
        await ask(log, coordinator, verb="observe", node="p0")
        observed = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert (observed.miss, observed.mode, observed.candidates) == ("observe", "observe", ())
        assert [(one.node, one.blocks) for one in observed.observed] == [("d0", 64)]


async def test_sources_that_only_observe_count_for_askers_that_only_observe() -> None:
    log = MemoryLog()
    p0, d0 = FakeNode(log, "p0"), FakeNode(log, "d0")
    await p0.join()
    await d0.join()
    last = await d0.facts(offer("d.1", PROMPT))
    async with running(log) as coordinator:
        await settled(coordinator, last)
        await ask(log, coordinator, verb="observe", node="d0")
        sharing = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert (sharing.miss, sharing.candidates, sharing.observed) == ("nothing_held", (), ())
        await ask(log, coordinator, verb="observe")
        observing = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert (observing.miss, observing.candidates) == ("observe", ())
        assert [(one.node, one.blocks) for one in observing.observed] == [("d0", 64)]
        other = await plan(log, coordinator, plan_request("p0", chain("other", 64)))
        assert (other.miss, other.mode, other.observed) == ("nothing_held", "observe", ())
        await ask(log, coordinator, verb="resume", node="p0")
        again = await plan(log, coordinator, plan_request("p0", PROMPT))
        assert (again.miss, again.mode) == ("nothing_held", "on"), "d0 still observes"
