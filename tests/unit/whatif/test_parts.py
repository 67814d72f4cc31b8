"""Parts of ``whatif``: options, names of units, order, links of another speed."""

from __future__ import annotations

import pytest
from tests.unit.daemon.support import chain

from kvferry.cli.whatifoptions import parse_policy
from kvferry.core.cost import LinkCost
from kvferry.errors import ConfigError
from kvferry.ids import short_hashes
from kvferry.replay.whatif.figures import Known, Sum, Times
from kvferry.replay.whatif.naming import FINE_BLOCKS_MAX, Names
from kvferry.replay.whatif.order import LATE_MS, SKEW_MS, InOrder
from kvferry.replay.whatif.policy import Policy, Rates

STRIDE = 8


def test_options_make_a_policy() -> None:
    policy = parse_policy(
        ttl="120",
        lease_budget="20%",
        free_watermark="2%",
        retain_max="0",
        pool="0.5x",
        host_tier="64GB",
        threshold="5",
        min_pull_tokens="256",
        link_rates=["p0:d1=12.5", "2x"],
        extra_decode="2",
        recorded_cost="off",
    )
    assert policy == Policy(
        ttl_s=120.0,
        lease_budget=0.2,
        free_watermark=0.02,
        retain_max_s=0.0,
        pool=0.5,
        host_tier_bytes=64 * 10**9,
        threshold_ms=5.0,
        min_pull_tokens=256,
        links={"p0>d1": 12.5e9},
        link_factor=2.0,
        extra_decode=2,
        weighed=False,
    )
    assert policy.changes
    assert not parse_policy().changes
    assert not parse_policy(recorded_cost="off").changes
    assert parse_policy(host_tier="off").host_tier_bytes == 0


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("ttl", "soon", "--ttl 'soon': use seconds"),
        ("ttl", "-1", "--ttl '-1'"),
        ("ttl", "nan", "--ttl 'nan'"),
        ("lease_budget", "95%", "from 0 to 90%"),
        ("lease_budget", "lots", "write 0.2 or 20%"),
        ("free_watermark", "1", "--free-watermark '1' is no share of a pool"),
        ("free_watermark", "half", "write 0.2 or 20%, from 0 to 90%"),
        ("retain_max", "long", "--retain-max 'long': use seconds from 0 to 604,800"),
        ("pool", "2", "write it as 0.5x or 2x"),
        ("host_tier", "64 apples", "or off"),
        ("threshold", "-3", "milliseconds"),
        ("min_pull_tokens", "1.5", "whole number"),
        ("extra_decode", "1000", "from 0 to 64"),
        ("recorded_cost", "maybe", "learned or off"),
        ("link_rates", ["fast"], "SRC:DST=GB/s"),
        ("link_rates", ["p0:d0=0"], "SRC:DST=GB/s"),
        ("link_rates", ["p0:p0=3"], "no link to itself"),
        ("link_rates", ["2x", "3x"], "more than one factor"),
    ],
)
def test_what_is_no_policy_is_told_with_the_option(option: str, given: object, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_policy(**{option: given})  # type: ignore[arg-type]
    assert said in str(told.value)


def named(names: Names, session: str, hashes: list[bytes]) -> tuple[int, ...]:
    return names.of(session, short_hashes(hashes, STRIDE), len(hashes))


def test_a_turn_finds_all_blocks_of_the_one_before_it() -> None:
    names, talk = Names(100, STRIDE), chain("talk", 40)
    before, after = named(names, "s", talk[:13]), named(names, "s", talk)
    assert (len(before), len(after)) == (13, 40)
    assert after[:13] == before


def test_prompts_share_what_lies_before_their_parting_and_no_more() -> None:
    names = Names(100, STRIDE)
    one, other = chain("one", 32), chain("other", 32, shared=16, root="one")
    first, second = named(names, "a", one), named(names, "b", other)
    assert sum(a == b for a, b in zip(first, second, strict=True)) == 16
    assert not set(first[16:]) & set(second[16:])


def test_large_pools_are_simulated_in_samples() -> None:
    names, talk = Names(FINE_BLOCKS_MAX + 1, STRIDE), chain("talk", 40)
    assert names.grain == STRIDE
    assert len(named(names, "s", talk)) == 5
    assert named(names, "s", talk[:17]) == named(names, "t", talk)[:2]


def test_what_is_told_late_happens_in_its_order() -> None:
    order, seen = InOrder(), list[str]()
    order.add(5_000, 5_100, lambda now_s: seen.append(f"second at {now_s:g}"))
    order.add(4_000, 5_200, lambda now_s: seen.append(f"first at {now_s:g}"))
    order.add(5_000 + 2 * SKEW_MS, 6_000, lambda now_s: seen.append(f"third at {now_s:g}"))
    order.release(4_000 + LATE_MS - 1)
    assert seen == []
    order.release(5_000 + LATE_MS)
    assert seen == ["first at 4", "second at 5"]
    order.release()
    assert seen[2:] == ["third at 6"], "a clock that is far off is not believed"


def link(bytes_per_ms: float) -> LinkCost:
    made = LinkCost()
    for size in (1e6, 5e6, 2e7):
        made.observe(size, 2.0 + size / bytes_per_ms)
    return made


def test_links_under_a_policy() -> None:
    learned = {"a>b/tcp": link(1e6), "b>a/tcp": link(1e6), "a>a/host_copy": link(1e6)}
    policy = Policy(link_factor=4.0, links={"b>a": 5e8})
    rates = Rates(learned, policy, {"extra": "a"})
    fast, slow, own = rates.get("a>b/tcp"), rates.get("b>a/tcp"), rates.get("a>a/host_copy")
    assert fast is not None
    assert slow is not None
    assert own is learned["a>a/host_copy"], "host memory is no link"
    assert fast.bytes_per_ms() == pytest.approx(4e6, rel=0.05)
    assert slow.bytes_per_ms() == pytest.approx(5e5, rel=0.01)
    assert fast.floor_ms() == learned["a>b/tcp"].floor_ms()
    extra = rates.get("extra>b/tcp")
    assert extra is not None
    assert extra.bytes_per_ms() == fast.bytes_per_ms()
    assert rates.get("x>y/tcp") is None
    unknown = Rates({}, policy, {}).get("b>a/tcp")
    assert unknown is not None
    assert unknown.bytes_per_ms() == pytest.approx(5e5, rel=0.05)
    assert Rates(learned, Policy(), {}).get("a>b/tcp") is learned["a>b/tcp"]


def test_a_band_is_as_wide_as_the_recorded_policy_is_missed() -> None:
    exact, off = Sum(), Sum()
    for one, base in ((exact, 100.0), (off, 160.0)):
        for _ in range(10):
            one.add(100.0, base, 40.0)
    assert (exact.forecast, exact.band(16)) == (400.0, 80.0)
    assert off.band(16) > 600.0


def test_times_keep_their_quantiles_in_bounded_memory() -> None:
    times = Times()
    for number in range(120_000):
        times.add(float(number % 101), 1.0, -2.0)
    assert times.count == 120_000
    assert len(times._kept) <= 50_000
    assert times.quantiles(0.0, 0.0) == pytest.approx((50.0, 95.0, 99.0), abs=2.0)
    assert times.quantiles(1.0, 1.0) == pytest.approx((49.0, 94.0, 98.0), abs=2.0)


def test_what_was_computed_before_is_remembered_from_the_beginning_on() -> None:
    known = Known()
    known.add((1, 2, 3))
    assert known.repeated((1, 2, 9, 3)) == 2
    assert known.repeated((7, 1, 2)) == 0
