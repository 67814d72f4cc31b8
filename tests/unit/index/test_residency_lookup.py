"""Cases of the index worth naming: holes, tiers, what several offers list, what moves and ends."""

from __future__ import annotations

from tests.property.index_model import Offer

from kvferry.ids import pack_short
from kvferry.index.answer import Held
from kvferry.index.residency import Residency

STRIDE = 4
NUMBERS = range(100, 110)
CHAIN = pack_short(NUMBERS)


def run(start: int, end: int, *, node: str = "d0", tier: str = "cache", beside: int = 0) -> Offer:
    """Samples ``start`` to ``end`` of the chain, ``beside`` blocks off their place."""
    return Offer(node, tier, pack_short(NUMBERS[start:end]), start * STRIDE + beside)


def held(residency: Residency, chain: bytes = CHAIN) -> list[tuple[str, int, str]]:
    return [(one.node, one.samples, one.tier) for one in residency.holders(chain)]


def test_a_hole_is_never_jumped() -> None:
    residency = Residency()
    residency.put("head", run(0, 6), STRIDE)
    residency.put("rest", run(6, 10), STRIDE)
    assert held(residency) == [("d0", 10, "cache")]
    residency.put("head", run(0, 3), STRIDE)
    assert held(residency) == [("d0", 3, "cache")]
    residency.put("between", run(2, 7), STRIDE)
    assert held(residency) == [("d0", 10, "cache")]
    residency.drop("head")
    assert held(residency) == []


def test_nobody_is_helped_by_what_another_node_holds() -> None:
    residency = Residency()
    residency.put("head", run(0, 6), STRIDE)
    residency.put("rest", run(6, 10, node="d1"), STRIDE)
    assert held(residency) == [("d0", 6, "cache")]


def test_the_tier_is_the_best_that_holds_all_or_the_least_good_that_is_needed() -> None:
    residency = Residency()
    residency.put("cache", run(0, 6), STRIDE)
    residency.put("lease", run(0, 6, tier="hbm"), STRIDE)
    assert held(residency) == [("d0", 6, "hbm")]
    residency.put("host", run(0, 8, tier="host"), STRIDE)
    assert held(residency) == [("d0", 8, "host")]
    assert held(residency, CHAIN[:48]) == [("d0", 6, "hbm")]
    residency.put("host", run(5, 10, tier="host"), STRIDE)
    assert held(residency) == [("d0", 10, "host")]
    residency.drop("lease")
    residency.drop("host")
    assert held(residency) == [("d0", 6, "cache")]


def test_an_offer_that_begins_between_samples_extends_nothing() -> None:
    residency = Residency()
    residency.put("head", run(0, 6), STRIDE)
    residency.put("rest", run(6, 10, beside=1), STRIDE)
    assert held(residency) == [("d0", 6, "cache")]
    assert residency.offers() == {"d0": {"head", "rest"}}
    residency.drop("rest")
    assert residency.offers() == {"d0": {"head"}}


def test_what_two_offers_list_outlives_one_of_them() -> None:
    residency = Residency()
    residency.put("one", run(0, 10), STRIDE)
    residency.put("two", run(0, 5), STRIDE)
    assert residency.samples() == 10
    residency.drop("one")
    assert held(residency) == [("d0", 5, "cache")]
    assert residency.samples() == 5
    residency.drop("two")
    residency.drop("two")
    assert held(residency) == []
    assert (residency.samples(), residency.offers()) == (0, {})


def test_a_sample_is_kept_once_however_many_hold_it() -> None:
    residency = Residency()
    for number in range(50):
        residency.put(f"o{number}", run(0, 10, node=f"d{number}"), STRIDE)
    assert residency.samples() == 10
    assert len(held(residency)) == 50


def test_of_many_that_hold_the_same_prompts_take_different_ones() -> None:
    residency = Residency()
    for number in range(50):
        residency.put(f"o{number}", run(0, 5, node=f"d{number}"), STRIDE)
    residency.put("longer", run(0, 10, node="best"), STRIDE)
    taken = set()
    for prompt in range(40):
        found = residency.holders(CHAIN[:40] + pack_short([prompt]), limit=2)
        assert [one.samples for one in found] == [5, 5]
        taken |= {one.node for one in found}
    assert len(taken) > 30
    most = residency.holders(CHAIN, limit=3)
    assert most[0] == Held("best", 10, "cache")
    assert [one.samples for one in most] == [10, 5, 5]
    asked = list[str]()
    unusable = residency.holders(CHAIN, usable=lambda node: bool(asked.append(node)), limit=1)
    assert (unusable, len(asked)) == ([], 51)


def test_a_chain_that_parts_is_found_up_to_there_and_beyond() -> None:
    other = CHAIN[:40] + pack_short(range(200, 205))
    residency = Residency()
    residency.put("one", run(0, 10), STRIDE)
    residency.put("two", Offer("d1", "cache", other), STRIDE)
    assert held(residency, other) == [("d1", 10, "cache"), ("d0", 5, "cache")]
    assert held(residency) == [("d0", 10, "cache"), ("d1", 5, "cache")]
    residency.drop("one")
    assert held(residency) == [("d1", 5, "cache")]
    assert residency.samples() == 10


def test_an_offer_that_moves_to_another_node_leaves_the_first() -> None:
    residency = Residency()
    residency.put("one", run(0, 3), STRIDE)
    residency.put("one", run(0, 3, node="d1"), STRIDE)
    assert held(residency) == [("d1", 3, "cache")]


def test_each_node_is_asked_about_once() -> None:
    residency, asked = Residency(), list[str]()
    residency.put("lease", run(0, 10, tier="hbm"), STRIDE)
    residency.put("offer", run(0, 10), STRIDE)
    residency.put("short", Offer("d1", "cache", CHAIN[:40] + bytes(8)), STRIDE)
    found = residency.holders(CHAIN, usable=lambda node: bool(asked.append(node)))
    assert (found, sorted(asked)) == ([], ["d0", "d1"])


def test_put_gives_what_nobody_held() -> None:
    other = CHAIN[:40] + pack_short(range(200, 205))
    residency = Residency()
    assert residency.put("one", run(0, 4), STRIDE) == CHAIN[:32]
    assert residency.put("two", run(0, 6, node="d1"), STRIDE) == CHAIN[32:48]
    assert residency.put("one", run(0, 6), STRIDE) == b""
    assert residency.put("three", Offer("d1", "cache", other), STRIDE) == other[40:]
    assert sorted(residency.stretches()) == sorted([CHAIN[:48], other[40:]])
    residency.drop("three")
    assert residency.stretches() == [CHAIN[:48]]
    assert residency.put("three", Offer("d0", "host", other), STRIDE) == other[40:]
