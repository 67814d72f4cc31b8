"""What each option changes, and that nothing changes without it."""

from __future__ import annotations

import pytest
from tests.unit.daemon.support import BLOCK
from tests.unit.whatif.ledgers import ANSWER, BLOCK_BYTES, FIRST, GROWS, Ledger

from kvferry.errors import ConfigError
from kvferry.replay.whatif.policy import Policy

TALKS, TURNS = 6, 3
COMPUTED = sum((FIRST + turn * GROWS) * BLOCK + 5 for turn in range(TURNS)) * TALKS
AGAIN = sum(FIRST + turn * GROWS + ANSWER for turn in range(TURNS - 1)) * BLOCK * TALKS
"""Of these, what had been computed before: the turn before, answer included."""


async def crowded(**said: int) -> Ledger:
    """One engine that forgets every conversation before its next turn."""
    ledger = Ledger()
    await ledger.join("e0", **said)
    await ledger.crowd("e0", TALKS, TURNS)
    return ledger


@pytest.mark.parametrize(
    ("policy", "less"),
    [
        (Policy(), False),
        (Policy(pool=4.0), True),
        (Policy(pool=0.5), False),
        (Policy(host_tier_bytes=1_000 * BLOCK_BYTES), True),
        (Policy(host_tier_bytes=0), False),
        (Policy(lease_budget=0.8), True),
        (Policy(lease_budget=0.8, ttl_s=0.0), False),
        (Policy(ttl_s=300.0), False),
        (Policy(lease_budget=0.8, free_watermark=0.05), True),
        (Policy(lease_budget=0.8, free_watermark=0.8), False),
    ],
    ids=[
        "nothing",
        "larger-pool",
        "smaller-pool",
        "host-tier",
        "no-host-tier",
        "leases",
        "leases-of-no-time",
        "longer-leases-within-no-budget",
        "leases-and-some-room",
        "leases-with-no-room",
    ],
)
async def test_memory_decides_what_is_computed_again(policy: Policy, less: bool) -> None:
    report = await (await crowded()).ask(policy)
    again = report.recomputed_tokens
    assert again is not None
    assert report.computed_tokens is not None
    assert again.was == AGAIN
    assert (again.forecast < again.was) == less, again
    assert report.computed_tokens.was == COMPUTED
    assert report.computed_tokens.forecast - COMPUTED == again.forecast - again.was


LEASED = Policy(lease_budget=0.8)


@pytest.mark.parametrize(
    ("settings", "later", "changes"),
    [
        ({"lease_budget": 0.8}, {}, False),
        ({"lease_budget": 0.8, "node": "e0"}, {}, False),
        ({"lease_ms": 0}, {}, False),
        ({"free_watermark": 0.8}, {}, False),
        ({"lease_budget": 0.8}, {"unset": ("lease_budget",)}, True),
        ({"lease_ms": 60_000}, {}, True),
    ],
    ids=["budget", "of-the-node", "without-time", "no-room", "taken-back", "time-alone"],
)
async def test_what_an_operator_had_set_is_the_recorded_policy(
    settings: dict[str, object], later: dict[str, object], changes: bool
) -> None:
    """A budget that was in force already, or that other settings void, changes nothing."""
    ledger = Ledger()
    await ledger.leads("learned")
    await ledger.join("e0")
    await ledger.keeps(**settings)  # type: ignore[arg-type]
    if later:
        await ledger.keeps(**later)  # type: ignore[arg-type]
    await ledger.crowd("e0", TALKS, TURNS)
    again = (await ledger.ask(LEASED)).recomputed_tokens
    assert again is not None
    assert (again.forecast != again.was) is changes, again


async def test_a_budget_that_was_taken_away_in_between_ends_its_leases() -> None:
    """Half the time with a budget, half without: to never have had it costs something, but not
    as much as to have had it all the time would spare."""
    ledger = Ledger()
    await ledger.leads("learned")
    await ledger.join("e0")
    await ledger.keeps(lease_budget=0.8)
    await ledger.crowd("e0", TALKS, TURNS)
    await ledger.keeps(lease_budget=0.0)
    await ledger.crowd("e0", TALKS, TURNS)
    never = (await ledger.ask(Policy(lease_budget=0.0))).recomputed_tokens
    always = (await ledger.ask(LEASED)).recomputed_tokens
    assert never is not None
    assert always is not None
    assert always.forecast < always.was == never.was < never.forecast


@pytest.mark.parametrize(("share", "less"), [(0.05, True), (0.8, False)])
async def test_a_watermark_that_was_in_the_way_of_leases(share: float, less: bool) -> None:
    ledger = await crowded(lease_blocks=51, watermark_blocks=51)
    again = (await ledger.ask(Policy(free_watermark=share))).recomputed_tokens
    assert again is not None
    assert (again.forecast < again.was) is less, again


@pytest.mark.parametrize(
    ("retain_max_s", "lost"), [(0.0, True), (3.0, True), (30.0, False), (900.0, False)]
)
async def test_what_clients_may_ask_for(retain_max_s: float, lost: bool) -> None:
    """A client had its chain kept for a minute, beside others that fill the pool, and came back
    after some ten seconds. Leases of a moment keep nothing that nobody asked for."""
    ledger = Ledger()
    await ledger.join("e0", lease_blocks=40, lease_ms=1)
    await ledger.turn("e0", "asks", FIRST, retain_ms=60_000)
    await ledger.crowd("e0", TALKS, 1)
    await ledger.turn("e0", "asks", FIRST + GROWS, local=FIRST + ANSWER)
    report = await ledger.ask(Policy(retain_max_s=retain_max_s))
    again = report.recomputed_tokens
    assert again is not None
    assert again.was == 0
    assert again.forecast == ((FIRST + ANSWER) * BLOCK if lost else 0), again
    assert any("--retain-max" in told for told in report.assumptions)
    assert not any("--retain-max" in told for told in (await ledger.ask()).assumptions)


async def test_a_pool_for_all_computes_only_what_is_new() -> None:
    report = await (await crowded()).ask(Policy(pool=4.0))
    assert report.computed_tokens is not None
    assert report.recomputed_tokens is not None
    assert report.recomputed_tokens.forecast == 0
    assert report.computed_tokens.forecast == COMPUTED - AGAIN
    assert report.ttft_p50_ms is not None
    assert report.ttft_p50_ms.forecast < report.ttft_p50_ms.was


async def test_a_host_tier_that_is_there_is_worth_what_it_holds() -> None:
    ledger = Ledger()
    await ledger.join("e0", host_blocks=1_000)
    for turn in range(TURNS):
        for talk in range(TALKS):
            kept = FIRST + (turn - 1) * GROWS + 2 if turn else 0
            await ledger.turn(
                "e0", f"t{talk}", FIRST + turn * GROWS, source="e0", pulled=kept, basis="host"
            )
            ledger.log.now_s += 1.0
    report = await ledger.ask(Policy(host_tier_bytes=0))
    assert report.host_tokens is not None
    assert report.recomputed_tokens is not None
    assert report.host_tokens.was > 0
    assert report.host_tokens.low == 0
    assert report.host_tokens.forecast < 0.1 * report.host_tokens.was
    assert report.recomputed_tokens.forecast > report.recomputed_tokens.was + BLOCK * TALKS
    same = await ledger.ask(Policy(host_tier_bytes=1_000 * BLOCK_BYTES))
    assert same.host_tokens is not None
    assert same.host_tokens.forecast == same.host_tokens.was


async def pulling() -> Ledger:
    """p0 computes the first half of talks, and then pulls what d0 has of the others."""
    ledger = Ledger()
    await ledger.join("p0", blocks=2_000)
    await ledger.join("d0", blocks=2_000)
    for number in range(8):
        await ledger.turn("p0", f"own-{number}", FIRST + number)
        await ledger.turn("d0", f"talk-{number}", FIRST)
        ledger.log.now_s += 1.0
    for number in range(8):
        await ledger.turn("p0", f"talk-{number}", FIRST + 2, source="d0", pulled=FIRST + 2)
        ledger.log.now_s += 1.0
    return ledger


@pytest.mark.parametrize(
    ("policy", "moves"),
    [
        (Policy(), True),
        (Policy(threshold_ms=1e6), False),
        (Policy(threshold_ms=1.0), True),
        (Policy(min_pull_tokens=10_000), False),
        (Policy(min_pull_tokens=BLOCK), True),
        (Policy(link_factor=1e-3), False),
        (Policy(link_factor=2.0), True),
        (Policy(links={"d0>p0": 1e3}), False),
        (Policy(links={"p0>d0": 1e3}), True),
    ],
)
async def test_what_is_worth_moving(policy: Policy, moves: bool) -> None:
    report = await (await pulling()).ask(policy)
    moved, computed = report.moved_bytes, report.computed_tokens
    assert moved is not None
    assert computed is not None
    assert moved.was == 8 * (FIRST + 2) * BLOCK_BYTES
    if moves:
        assert (moved.forecast, computed.forecast) == (moved.was, computed.was)
    else:
        # The first pull of a link that nobody knows yet is made in any case: it teaches.
        assert moved.forecast <= moved.was / 8
        assert computed.forecast >= computed.was + 7 * FIRST * BLOCK


async def test_more_decode_nodes_share_the_sessions() -> None:
    ledger = Ledger()
    await ledger.join("d0", role="decode")
    await ledger.crowd("d0", TALKS, TURNS)
    more = await ledger.ask(Policy(extra_decode=3))
    assert more.computed_tokens is not None
    assert more.computed_tokens.forecast < 0.8 * more.computed_tokens.was
    one = await ledger.ask(Policy(extra_decode=0, pool=0.99))
    assert one.computed_tokens is not None
    assert one.computed_tokens.forecast == one.computed_tokens.was


async def test_without_a_decode_node_none_can_be_added() -> None:
    with pytest.raises(ConfigError, match="role=decode"):
        await (await crowded()).ask(Policy(extra_decode=1))
