"""When a request is served from the node's own host tier."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.connector.support import BLOCK, chain, result, tracked

from kvferry.core.retention_gaps import prior
from kvferry.node.export.host_copies import FORGET_S, LoadCost
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.plans.advice import AdviceView
from kvferry_connectors.vllm.host import HostTier
from kvferry_connectors.vllm.hosting import HOST, KEPT_OUT, Hosting
from kvferry_connectors.vllm.looking import HANDOVER
from kvferry_connectors.vllm.metadata import LoadJob
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.outcomes import outcome
from kvferry_connectors.vllm.pulls import Pulls
from kvferry_connectors.vllm.remainders import Remainders
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

HASHES = chain("a", 20)
HELD = 12
"""Blocks of it that the host tier has."""


class Looker:
    """Knows what the coordinator told, and hears what is not wanted any more."""

    def __init__(self) -> None:
        self.others_hold_more = False
        self.aborted: list[Pull] = []
        self.given_back = 0
        plans: Any = SimpleNamespace(available=lambda: True, advice=AdviceView())
        self.remainders = Remainders(plans, BLOCK)

    def spared(self, one: Tracked, local_tokens: int) -> str:
        return "" if self.others_hold_more else "local"

    def unreserve(self, pull: Pull) -> None:
        pull.slots.clear()
        self.given_back += 1

    def predict(self, one: Tracked, pull: Pull) -> None:
        return

    def leave(self, pull: Pull) -> None:
        return

    def abort(self, pull: Pull, why: str) -> None:
        self.aborted.append(pull)


class Side:
    """The part of a scheduler side that decides, with a host tier."""

    def __init__(self) -> None:
        options, outbox = Options(), Outbox()
        self.table = ExportTable("life", on_pin_ended=lambda end: None)
        self.looker: Any = Looker()
        self.pulls = Pulls(options, outbox, self.looker, block_size=BLOCK, incarnation="life")
        self.hosting = Hosting(options, outbox, self.table, self.pulls, self.looker)
        self.advice: Any = SimpleNamespace(term=0, gaps=prior(), saved_ms=lambda tokens: 10.0)
        exports: Any = SimpleNamespace(
            caching=True,
            engine_blocks=100,
            present_hash=lambda block: None,
            host_tier=lambda tier: None,
            leasing=SimpleNamespace(advice=self.advice),
        )
        joined: Any = SimpleNamespace(
            node="p0",
            incarnation="life",
            host_slots=50,
            ranks=1,
            rank_block_bytes=1,
            block_size=BLOCK,
        )
        assert self.hosting.each_step(joined, exports) == []
        assert self.hosting.tier is not None
        self.tier: HostTier = self.hosting.tier
        self.tier.table.begin("r", "", 0.0)
        self.tier.table.fill(self.tier.table.take(HELD, 0.0, set).slots, HASHES[:HELD])
        self.tier.table.grow("r", HASHES[:HELD])
        self.tier.table.settle("r")

    def ask(self, one: Tracked, local: int = 0, mode: str = "on") -> int | None:
        one.local_tokens = local * BLOCK
        self.hosting.consider(one, local * BLOCK, mode)
        return self.pulls.answer(one, local * BLOCK)

    def load(self, one: Tracked, local: int = 0) -> LoadJob:
        extra = self.ask(one, local)
        assert extra
        count = extra // BLOCK
        job = self.pulls.commit(one, local, list(range(40, 40 + count)))
        return self.hosting.order(one, job)


@pytest.fixture
def side() -> Side:
    return Side()


def found(state: PullState, granted: int, basis: str = "plan") -> Pull:
    pull = Pull("t.9", float("inf"), 0.0)
    pull.state, pull.granted, pull.basis, pull.source = state, granted, basis, "d0"
    pull.slots.append(None)
    return pull


def test_what_the_tier_has_beyond_the_cache_is_loaded(side: Side) -> None:
    one = tracked("r", HASHES)
    job = side.load(one, local=3)
    assert one.pull is not None
    assert (one.pull.basis, one.pull.source) == (HOST, "p0")
    assert job.host_slots == tuple(side.tier.table.slot(h) for h in HASHES[3:HELD])
    assert job.target_blocks == tuple(range(40, 40 + HELD - 3))
    side.tier.clear("cleared")
    assert side.tier.table.free == 50 - (HELD - 3), "what is being loaded stays where it is"
    one.results = [result(count=HELD - 3, total_ms=1.0)]
    side.hosting.loaded(one)
    assert side.tier.table.free == 50


def test_a_request_that_shares_nothing_is_left_alone(side: Side) -> None:
    one = tracked("r", chain("other", 20))
    assert side.ask(one) == 0
    assert one.pull is None


@pytest.mark.parametrize("miss", sorted(KEPT_OUT))
def test_a_request_that_may_not_be_served_from_elsewhere_is_not(side: Side, miss: str) -> None:
    one = tracked("r", HASHES)
    one.miss = miss
    assert side.ask(one) == 0
    assert (one.pull, one.miss) == (None, miss)


@pytest.mark.parametrize("mode", ["paused", "observe"])
def test_nothing_is_loaded_while_sharing_is_off(side: Side, mode: str) -> None:
    assert side.ask(tracked("r", HASHES), mode=mode) == 0


def test_a_peer_with_as_much_is_not_needed(side: Side) -> None:
    one = tracked("r", HASHES)
    one.pull = theirs = found(PullState.READY, HELD)
    assert side.ask(one) == HELD * BLOCK
    assert one.pull is not theirs
    assert (side.looker.aborted, side.looker.given_back) == ([theirs], 1)


def test_a_peer_with_more_is_asked(side: Side) -> None:
    one = tracked("r", HASHES)
    one.pull = theirs = found(PullState.READY, HELD + 1)
    assert side.ask(one) == (HELD + 1) * BLOCK
    assert one.pull is theirs


@pytest.mark.parametrize("more", [True, False])
def test_a_plan_is_waited_for_only_where_others_hold_more(side: Side, more: bool) -> None:
    side.looker.others_hold_more = more
    one = tracked("r", HASHES)
    one.pull = found(PullState.LOOKING, 0)
    assert side.ask(one) == (None if more else HELD * BLOCK)
    one.pull.state = PullState.ENDED  # The answer: nobody.
    if more:
        assert side.ask(one) == HELD * BLOCK


def test_a_prefill_that_is_followed_is_not_disturbed(side: Side) -> None:
    one = tracked("r", HASHES)
    one.pull = theirs = found(PullState.READY, 20, HANDOVER)
    assert side.ask(one) == 20 * BLOCK
    assert one.pull is theirs


def test_an_answer_follows_the_tier_and_the_cache(side: Side) -> None:
    one = tracked("r", HASHES)
    assert side.ask(one) == HELD * BLOCK
    assert side.ask(one, local=5) == (HELD - 5) * BLOCK
    side.tier.clear("cleared")
    assert side.ask(one) == 0


def test_a_tier_that_is_slower_than_computing_is_left_alone_for_a_while(side: Side) -> None:
    one = tracked("a", HASHES)
    side.load(one)
    one.results = [result(count=HELD, read_ms=50.0, total_ms=60.0)]
    side.hosting.loaded(one)
    assert one.pull is not None
    side.pulls.end(one, outcome(one, one.pull, block_size=BLOCK, verify="off"))
    assert side.ask(tracked("b", HASHES)) == HELD * BLOCK, "nobody told what computing takes"
    side.advice.term = 1
    dear = tracked("c", HASHES)
    assert side.ask(dear) == 0
    assert dear.miss == "too_dear"
    side.advice.saved_ms = lambda tokens: 26.0
    assert side.ask(tracked("d", HASHES)) == HELD * BLOCK


def test_what_copies_take_is_the_fastest_of_late() -> None:
    cost = LoadCost()
    assert cost.ms(10, 0.0) == 0.0
    cost.noted(10, 60.0, 0.0)
    assert cost.ms(5, 1.0) == 30.0
    cost.noted(10, 20.0, 1.0)
    cost.noted(10, 90.0, 2.0)
    assert cost.ms(5, 2.0) == 10.0
    cost.noted(10, 90.0, 1.0 + FORGET_S)
    assert cost.ms(5, 1.0 + FORGET_S) == 45.0
    assert cost.ms(5, 1.0 + 2 * FORGET_S) == 0.0
    cost.noted(0, 5.0, 500.0)
    assert cost.ms(1, 500.0) == 0.0
