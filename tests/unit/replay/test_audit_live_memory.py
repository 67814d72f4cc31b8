"""What a node has recorded against what its engine says of its own memory: lent, leased, hosted."""

from __future__ import annotations

import msgspec
from tests.unit.node_agent.support import offer
from tests.unit.replay import test_audit_live
from tests.unit.replay.test_audit_live import LEASE, Pool, asked, node, stories

from kvferry.core.messages import HeldLease

quick = test_audit_live.quick


async def test_what_the_pool_lends_no_longer_is_found_if_it_stays_so() -> None:
    pool = Pool()
    pool.lends = {"o1": [2, 4], "o2": [3]}
    async with node(offer("o1", 4), pool=pool) as made:
        # A reuse that is not recorded yet: the next answer is as it should be.
        assert (await asked(made)).agreed == ("p0",)
        made.outbox.facts(offer("o2", 4))
        await made.all_stored()
        ((about, story),) = stories(await asked(made))
    assert about == "o2"
    assert "its pool grants 3 blocks" in story


async def test_a_lease_that_the_engine_does_not_hold_is_found() -> None:
    pool = Pool()
    pool.lends = {"l1": [2]}
    pool.leased = [HeldLease(lease="l1", blocks=2)]
    async with node(LEASE, pool=pool) as made:
        assert (await asked(made)).agreed == ("p0",), "the control"
        pool.lends["l1"] = [0]
        ((about, story),) = stories(await asked(made))
    assert about == "l1"
    assert story == ("p0 has recorded 2 blocks of l1 (tier hbm), of which its engine holds 0")


async def test_a_lease_of_which_nothing_is_recorded_is_found_if_it_stays_so() -> None:
    pool = Pool()
    pool.leased = [HeldLease(lease="l1", blocks=2), HeldLease(lease="secret", blocks=7)]
    async with node(LEASE, pool=pool) as made:
        ((about, story),) = stories(await asked(made))
        assert about == "secret"
        assert "the engine of p0 holds 7 blocks by the lease secret, of which" in story
        pool.leased.pop()
        assert (await asked(made)).agreed == ("p0",), "the control"


async def test_what_the_host_tier_has_lost_is_found() -> None:
    pool = Pool()
    pool.lends = {"h1": [3]}
    async with node(msgspec.structs.replace(offer("h1", 3), tier="host"), pool=pool) as made:
        assert (await asked(made)).lent_blocks == 3
        pool.lends["h1"] = [1]
        ((_, story),) = stories(await asked(made))
    assert story == "p0 has recorded 3 blocks of h1 (tier host), of which its host tier has 1"
