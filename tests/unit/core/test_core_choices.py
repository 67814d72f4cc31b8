"""Placement and the questions about leases that need the present."""

from __future__ import annotations

from tests.unit.core.support import retained, started

from kvferry.core.cost import Rate
from kvferry.core.leases import by_tier, ends_ms, expired, is_lease
from kvferry.core.placement import Source, rank


def rate(amount: float, time: float) -> Rate:
    known = Rate()
    known.observe(amount, time)
    return known


def source(node: str, blocks: int, link: Rate | None = None, tier: str = "cache") -> Source:
    return Source(node=node, blocks=blocks, block_bytes=1_000, link=link, tier=tier)


def names(*sources: Source, prefill: Rate | None = None) -> list[str]:
    return [one.source.node for one in rank(sources, block_size=16, prefill=prefill)]


def test_without_knowledge_the_longest_prefix_comes_first() -> None:
    assert names(source("a", 5), source("b", 9), source("c", 9, tier="hbm")) == ["c", "b", "a"]


def test_the_source_that_saves_most_time_comes_first() -> None:
    slow, fast = rate(1_000, 10), rate(1_000, 1)
    prefill = rate(1_600, 1.0)  # 10 ms a block
    long_slow, short_fast = source("slow", 20, slow), source("fast", 15, fast)
    assert names(long_slow, short_fast, prefill=prefill) == ["fast", "slow"]


def test_what_is_too_dear_comes_last_and_says_so() -> None:
    prefill = rate(16_000, 1.0)  # 1 ms a block
    ranked = rank(
        [source("dear", 50, rate(1_000, 30)), source("cheap", 2, rate(1_000, 0.5))],
        block_size=16,
        prefill=prefill,
    )
    assert [(one.source.node, one.worth) for one in ranked] == [("cheap", True), ("dear", False)]
    assert ranked[0].gain_ms == 1.0
    assert ranked[1].move_ms == 1_500.0


def test_an_unknown_link_is_tried() -> None:
    prefill = rate(16_000, 1.0)
    assert names(source("new", 10), source("known", 10, rate(1_000, 0.5)), prefill=prefill) == [
        "new",
        "known",
    ]
    (only,) = rank([source("new", 10)], block_size=16, prefill=prefill)
    assert (only.worth, only.move_ms, only.gain_ms) == (True, None, None)


def test_the_last_decision_is_kept_when_costs_are_near() -> None:
    prefill = rate(16_000, 1.0)
    near = source("near", 10, rate(1_000, 1.05))
    for before in (True, False):
        (only,) = rank([near], block_size=16, prefill=prefill, before={"near": before})
        assert only.worth is before


def test_nothing_ranks_to_nothing() -> None:
    assert rank([], block_size=16, prefill=None) == []


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
