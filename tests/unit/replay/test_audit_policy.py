"""Leases that last longer than an operator has allowed are noted, once their node could know."""

from __future__ import annotations

import pytest
from tests.unit.whatif.ledgers import Ledger

from kvferry.core.events import Retained
from kvferry.replay.audit.run import audit


async def noted(*, why: str, ttl_ms: int, after_s: float, tail_only: bool = False) -> list[str]:
    """What the audit notes of a lease that begins so long after its time was limited to 5 s."""
    ledger = Ledger()
    await ledger.leads("learned")
    await ledger.join("d0", lease_blocks=10, lease_ms=30_000, retain_max_ms=60_000)
    await ledger.keeps(lease_ms=5_000)
    ledger.log.now_s += after_s
    lease = Retained(
        offer="d.9", rev=1, tier="hbm", count=4, tail=b"t" * 32, hashes=b"", ttl_ms=ttl_ms, why=why
    )
    last = await ledger.write("d0", lease)
    done = await audit(ledger.log, first=last if tail_only else None)
    assert done.violations == ()
    return [one.story for one in done.notes if one.invariant == "policy"]


@pytest.mark.parametrize(
    ("why", "ttl_ms", "after_s", "told"),
    [
        ("expected", 30_000, 60.0, True),
        ("handover", 5_001, 60.0, True),
        ("handover", 5_000, 60.0, False),
        ("expected", 30_000, 5.0, False),
        ("retain", 60_000, 60.0, False),
        ("retain", 61_000, 60.0, True),
        ("", 30_000, 60.0, False),
    ],
)
async def test_a_lease_beside_the_policy_in_force(
    why: str, ttl_ms: int, after_s: float, told: bool
) -> None:
    stories = await noted(why=why, ttl_ms=ttl_ms, after_s=after_s)
    assert len(stories) == told, stories
    if told:
        assert stories[0].startswith(f"lease d.9 of d0 is for {ttl_ms / 1000:g} s, and")


async def test_a_policy_from_before_the_range_counts() -> None:
    assert len(await noted(why="expected", ttl_ms=30_000, after_s=60.0, tail_only=True)) == 1
