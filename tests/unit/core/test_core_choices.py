"""Placement and the questions about leases that need the present."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.core.support import retained, started

from kvferry.core.cost import LinkCost, PrefillCost
from kvferry.core.leases import by_tier, ends_ms, expired, is_lease
from kvferry.core.placement import Source, rank, trial


def link(ms_a_block: float) -> LinkCost:
    known = LinkCost()
    for blocks in (10, 20, 40) * 4:
        known.observe(1_000 * blocks, ms_a_block * blocks)
    return known


def prefill_of(ms_a_block: float) -> PrefillCost:
    known = PrefillCost()
    for blocks in (10, 20, 40) * 4:
        known.observe(16 * blocks, 0, ms_a_block * blocks)
    return known


def source(node: str, blocks: int, link: LinkCost | None = None, **more: Any) -> Source:
    return Source(node=node, blocks=blocks, block_bytes=1_000, link=link, **more)


def names(*sources: Source, prefill: PrefillCost | None = None) -> list[str]:
    return [one.source.node for one in rank(sources, block_size=16, prefill=prefill)]


def test_without_knowledge_the_longest_prefix_comes_first() -> None:
    assert names(source("a", 5), source("b", 9), source("c", 9, tier="hbm")) == ["c", "b", "a"]


def test_the_source_that_saves_most_time_comes_first() -> None:
    prefill = prefill_of(10.0)
    long_slow, short_fast = source("slow", 20, link(8.0)), source("fast", 15, link(1.0))
    assert names(long_slow, short_fast, prefill=prefill) == ["fast", "slow"]


def test_a_long_queue_sends_the_next_one_elsewhere() -> None:
    prefill = prefill_of(10.0)
    near = source("near", 20, link(1.0), queue_ms=100.0)
    far = source("far", 20, link(3.0))
    assert names(near, far, prefill=prefill) == ["far", "near"]
    assert names(source("near", 20, link(1.0)), far, prefill=prefill) == ["near", "far"]


def test_what_is_too_dear_comes_last_and_says_so() -> None:
    ranked = rank(
        [source("dear", 50, link(30.0)), source("cheap", 2, link(0.5))],
        block_size=16,
        prefill=prefill_of(1.0),
    )
    assert [(one.source.node, one.worth) for one in ranked] == [("cheap", True), ("dear", False)]
    assert ranked[0].gain_ms == pytest.approx(1.0, rel=0.05)
    assert ranked[1].move_ms == pytest.approx(1_500.0, rel=0.05)


def test_an_unknown_link_is_tried() -> None:
    prefill = prefill_of(1.0)
    assert names(source("new", 10), source("known", 10, link(0.5)), prefill=prefill) == [
        "new",
        "known",
    ]
    (only,) = rank([source("new", 10)], block_size=16, prefill=prefill)
    assert (only.worth, only.move_ms, only.gain_ms) == (True, None, None)


def test_the_last_decision_is_kept_when_costs_are_near() -> None:
    for before in (True, False):
        near = source("near", 10, link(1.05), moving=before)
        (only,) = rank([near], block_size=16, prefill=prefill_of(1.0))
        assert only.worth is before


def test_equal_sources_share_the_targets_and_each_target_keeps_its_order() -> None:
    equal = [source(name, 10, link(0.5)) for name in ("a", "b", "c")]
    firsts = []
    for number in range(60):
        ranked = rank(equal, block_size=16, prefill=prefill_of(5.0), target=f"p{number}")
        again = rank(equal[::-1], block_size=16, prefill=prefill_of(5.0), target=f"p{number}")
        assert [one.source.node for one in ranked] == [one.source.node for one in again]
        firsts.append(ranked[0].source.node)
    assert min(firsts.count(name) for name in "abc") >= 10


@pytest.mark.parametrize(
    ("blocks", "credit_ms", "again", "limit"),
    [
        pytest.param(160, 0.0, 0, 0, id="nothing-put-aside"),
        pytest.param(160, 5.0, 0, 0, id="too-little"),
        pytest.param(160, 40.0, 0, 8, id="enough"),
        pytest.param(1_600, 0.0, 0, 8, id="its-own-request-pays"),
        pytest.param(1_600, 40.0, 1, 32, id="every-other-is-larger"),
        pytest.param(1_600, 0.0, 1, 8, id="where-that-is-paid-for"),
        pytest.param(4, 40.0, 0, 4, id="no-more-than-there-is"),
    ],
)
def test_a_trial_moves_a_small_part_and_only_what_is_put_aside_pays_for(
    blocks: int, credit_ms: float, again: int, limit: int
) -> None:
    prefill, dear_link = prefill_of(1.0), link(3.0)
    for _ in range(again):
        dear_link.observe(20_000, 60.0)
    dear = source("dear", blocks, dear_link, moving=False, credit_ms=credit_ms)
    tried = trial(rank([dear], block_size=16, prefill=prefill), block_size=16, prefill=prefill)
    assert (tried.limit if tried is not None else 0) == limit
    if tried is not None:
        assert tried.move_ms == pytest.approx(3.0 * limit, rel=0.1)
        assert tried.recompute_ms == pytest.approx(1.0 * limit, rel=0.1)


def test_nothing_ranks_to_nothing() -> None:
    assert rank([], block_size=16, prefill=None) == []
    assert trial([], block_size=16, prefill=prefill_of(1.0)) is None


def test_leases_expire_by_the_present_and_only_by_question() -> None:
    ledger, (d0,) = started("d0")
    d0.write(
        retained("lease", tier="hbm", ttl_ms=1_000),
        retained("short", tier="host", ttl_ms=500),
        retained("offer"),
    )
    offers = ledger.space.offers
    stored = offers["lease"].stored_ms
    assert [is_lease(offers[name]) for name in ("lease", "short", "offer")] == [True, True, False]
    assert (ends_ms(offers["lease"]), ends_ms(offers["offer"])) == (stored + 1_000, None)
    assert expired(ledger.state, stored + 499) == []
    assert [one.offer for one in expired(ledger.state, stored + 500)] == ["short"]
    for held in (ledger.state, ledger.space, offers.values()):
        assert [one.offer for one in expired(held, stored + 9_999)] == ["short", "lease"]
    assert len(ledger.space.offers) == 3


def test_what_is_held_by_tier() -> None:
    ledger, (d0, d1) = started("d0", "d1")
    d0.write(retained("a", count=10), retained("b", count=5, tier="hbm"))
    d1.write(retained("c", count=3))
    held = by_tier(ledger.space)
    assert (held["cache"].offers, held["cache"].blocks, held["cache"].tokens) == (2, 13, 208)
    assert held["hbm"].blocks == 5
    assert set(by_tier(ledger.space, "d1")) == {"cache"}
