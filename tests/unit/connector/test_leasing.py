"""What retention decides, carried out on vLLM's own block pool."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.connector.support import chain, tracked
from tests.unit.connector.test_exports import POOL, USABLE, Engine

from kvferry.core.retention_actions import Action
from kvferry.core.retention_settings import AS_STARTED, RetentionSettings
from kvferry.node.plans.advice import AdviceView
from kvferry_connectors.vllm.items import Leased, LeaseEnded, LeaseRenewed

BLOCK = 16
"""Tokens of a block of this engine."""


class Busy(Engine):
    """Other requests come and go, so that its cache forgets after a while."""

    def run(self, seconds: float, blocks_per_s: float = 4.0) -> None:
        """Time passes in steps of half a second, each of which computes blocks and frees them."""
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            taken = int(blocks_per_s / 2)
            self.exports.each_step(tokens=taken * BLOCK)
            held = self.pool.get_new_blocks(taken)
            for block in held:  # As vLLM's cache does; without a hash they would be taken first.
                block.reset_hash()
                block.set_block_hash(f"{self.now}-{block.block_id}".encode())
            self.pool.free_blocks(held)

    def cached(self) -> None:
        """What was served is in the engine's cache, in its order."""
        served = self.exports._watched
        blocks = [self.pool.blocks[i] for i in served if self.pool.blocks[i].block_hash is None]
        self.pool.touch(blocks)
        for block in blocks:
            block.set_block_hash(served[block.block_id] + b"0000")
        self.pool.free_blocks(blocks)

    def leases(self) -> list[tuple[str, str]]:
        """What was said of leases: begun or renewed or ended, and why."""
        said = []
        self.outbox.work()
        for item in self.items:
            if isinstance(item, Leased):
                said.append(("leased", item.why))
            elif isinstance(item, LeaseRenewed):
                said.append(("renewed", item.why))
            elif isinstance(item, LeaseEnded):
                said.append(("ended", item.reason))
        return said


def test_a_read_takes_most_of_a_lease_s_value() -> None:
    engine = Engine(lease_budget=0.4)
    _, first = engine.serve("a", 6, lease=True)
    _, second = engine.serve("b", 6, lease=True)
    engine.pin(first)
    assert engine.done().intact
    engine.exports.each_step()
    engine.exports.room_for(USABLE - 10)
    kept = {item.offer for item in engine.handed(Leased)} - {
        item.lease.rpartition("L")[0] for item in engine.handed(LeaseEnded)
    }
    assert kept == {engine.exports._offers[second[-1]]}


def test_a_void_read_changes_nothing() -> None:
    engine = Engine()
    _, hashes = engine.serve("a", 6)
    engine.pin(hashes)
    engine.pool.get_new_blocks(USABLE)
    assert not engine.done().intact
    assert engine.table.take_reads() == []


def test_of_two_nodes_that_have_a_chain_one_is_to_keep_it() -> None:
    engine = Engine()
    leasing = engine.exports.leasing
    leasing.advice = advice = AdviceView("d0")
    advice.shares = {"p0": 8}  # We have no host tier, so p0 keeps what both have.
    for name, session in (("named", "s"), ("unnamed", "")):
        offer, hashes = engine.serve(name, 6, lease=True, params={"session": session})
        chain = leasing.retention.find(offer)
        assert chain is not None
        engine.pin(hashes, name)
        assert engine.done(name).intact
        assert not chain.kept_elsewhere
        engine.exports.each_step()
        assert chain.kept_elsewhere == bool(session)
        assert chain.copies == 1


def test_a_session_s_blocks_are_leased_when_the_cache_is_about_to_lose_them() -> None:
    engine, without = Busy(lease_ms=30_000), Busy(lease_ms=30_000, lease_budget=0)
    for one in (engine, without):
        for filler in ("x", "y", "z", "w"):
            one.serve(filler, 6, params={"session": filler, "end": True})
        _, hashes = one.serve("a", 6, params={"session": "s"})
        one.cached()
        one.run(4)
        assert one.leases() == [], "the cache keeps it for now"
        one.run(8)
        kept = one is engine
        assert one.table.held(hashes) == (6 if kept else 0)
        assert one.leases() == ([("leased", "expected")] if kept else [])
    engine.run(20)
    assert engine.leases()[1] == ("renewed", "expected")
    engine.run(3000)
    assert engine.leases()[-1] == ("ended", "expired")
    assert engine.free == USABLE


def test_what_the_cache_lost_already_is_not_leased() -> None:
    engine = Busy(lease_ms=30_000)
    engine.serve("a", 6, params={"session": "s"})
    engine.pool.free_blocks(engine.pool.get_new_blocks(USABLE))
    engine.run(20)
    assert engine.leases() == []
    assert engine.free == USABLE


@pytest.mark.parametrize(("end", "reason"), [(False, "superseded"), (True, "session_end")])
def test_a_retained_session_goes_on_or_ends(end: bool, reason: str) -> None:
    engine = Engine()
    _, hashes = engine.serve("a", 4, params={"session": "s", "retain_ms": 60_000})
    assert engine.free == USABLE - 4
    engine.now += 10
    held = [engine.pool.blocks[i] for i in sorted(engine.exports._watched)]
    engine.pool.touch(held)
    engine.serve("a", 6, after=hashes, params={"session": "s", "end": end})
    engine.pool.free_blocks(held)
    assert [item.reason for item in engine.handed(LeaseEnded)] == [reason]
    leased = engine.handed(Leased)
    assert [item.ttl_ms for item in leased] == ([60_000] if end else [60_000, 50_000])
    assert engine.free == (USABLE if end else USABLE - 6)


def test_retention_beyond_the_bound_or_the_budget_is_not_given() -> None:
    engine = Engine(retain_max_ms=5_000)
    engine.serve("a", 4, params={"session": "s", "retain_ms": 60_000})
    assert [item.ttl_ms for item in engine.handed(Leased)] == [5_000]
    for number in range(8):
        engine.serve(f"b{number}", 6, params={"session": f"s{number}", "retain_ms": 60_000})
    assert engine.exports.leasing.retention.leased_blocks <= 16
    assert engine.free >= USABLE - 16


def test_one_tenant_cannot_end_another_one_s_session() -> None:
    engine = Engine()
    engine.serve("a", 4, params={"session": "s", "retain_ms": 60_000})
    other: dict[str, Any] = {"session": "s", "end": True}
    engine.serve("b", 4, params=other, salt="theirs")
    assert engine.handed(LeaseEnded) == []
    engine.serve("c", 4, params=other)
    assert [item.reason for item in engine.handed(LeaseEnded)] == ["session_end"]


def test_an_idle_look_costs_nothing_and_says_nothing() -> None:
    engine = Busy()
    for _ in range(100):
        engine.now += 1
        engine.exports.each_step()
    assert engine.leases() == []


def test_a_lease_that_could_not_begin_may_end_in_the_same_round() -> None:
    engine = Engine()
    offer, hashes = engine.serve("a", 4)
    engine.pool.free_blocks(engine.pool.get_new_blocks(USABLE))
    assert engine.table.held(hashes) == 0
    leasing = engine.exports.leasing
    actions = [Action("lease", offer, "expected", 9), Action("renew", offer, "expected", 9)]
    leasing._perform([*actions, Action("end", offer, "pressure")])
    leasing._perform([Action("lease", "gone", "expected", 9), Action("end", "gone", "pressure")])
    assert (engine.handed(Leased), engine.handed(LeaseEnded)) == ([], [])
    assert engine.free == USABLE


def test_no_lease_begins_under_an_offer_that_the_ledger_has_ended() -> None:
    engine = Engine()
    held = engine.pool.get_new_blocks(6)
    hashes, ids = chain("a", 6), [block.block_id for block in held]
    short, _ = engine.exports.offer(tracked("a", hashes[:3]), ids[:3], 3)
    other, _ = engine.serve("other", 3)
    engine.exports.offer_pulled(tracked("b", hashes), ids, 6)
    for offer in (short, other):
        engine.exports.leasing._perform([Action("lease", offer, "expected", 9)])
    assert [item.offer for item in engine.handed(Leased)] == [other]


def test_leases_hold_out_against_any_mixture_of_requests() -> None:
    """Whatever comes, what leases hold is given back, and the books of both sides agree."""
    draw = random.Random(3)
    engine = Busy(lease_ms=4_000, lease_budget=0.4)
    leasing = engine.exports.leasing
    for number in range(400):
        engine.run(draw.choice((0, 0.5, 2)), blocks_per_s=draw.choice((2, 8, 16)))
        size = draw.randint(1, 8)
        engine.exports.room_for(size)
        if engine.free >= size:
            params = {"session": f"s{draw.randint(0, 5)}", "end": draw.random() < 0.1}
            if draw.random() < 0.3:
                params["retain_ms"] = 3_000
            engine.serve(f"r{number}", size, lease=draw.random() < 0.3, params=params)
            engine.cached()
        held = {b.block_id for _, blocks in leasing._leases.values() for b in blocks}
        assert leasing.retention.leased_blocks == len(held) <= int(POOL * 0.4)
        assert engine.free == USABLE - len(held)
    assert {why for what, why in engine.leases() if what == "leased"} >= {"handover", "retain"}
    leasing.end_all("paused")
    assert engine.free == USABLE


def test_a_lower_budget_ends_leases_least_value_first_and_none_that_is_read() -> None:
    engine = Engine(lease_budget=0.5)
    _, first = engine.serve("a", 4, lease=True)
    _, second = engine.serve("b", 4, lease=True)
    leasing, names = engine.exports.leasing, engine.exports._offers
    leasing.keep_by(RetentionSettings(lease_budget=6 / POOL))
    engine.pin(first)
    engine.now += 1.0 / 2
    engine.exports.each_step()
    assert [item.lease.rpartition("L")[0] for item in engine.handed(LeaseEnded)] == [
        names[second[-1]]
    ]
    assert engine.handed(LeaseEnded)[0].reason == "policy"
    assert engine.table.held(second) == 4, "what is leased no more is offered as before"
    leasing.keep_by(RetentionSettings(lease_budget=0.0))
    engine.now += 0.2
    engine.exports.each_step()
    assert len(leasing) == 1, "somebody reads it"
    assert engine.done().intact
    engine.now += 0.2
    engine.exports.each_step()
    assert len(leasing) == 0
    assert engine.free == USABLE
    engine.serve("c", 4, lease=True)
    assert len(leasing) == 0, "nothing is leased any more"
    leasing.keep_by(AS_STARTED)
    engine.serve("d", 4, lease=True)
    assert len(leasing) == 1


def test_a_budget_that_is_not_lowered_ends_nothing() -> None:
    engine = Engine(lease_budget=0.5)
    engine.serve("a", 4, lease=True)
    engine.exports.leasing.keep_by(RetentionSettings(lease_budget=4 / POOL, lease_ms=60_000))
    engine.now += 0.2
    engine.exports.each_step()
    assert engine.handed(LeaseEnded) == []


def test_leases_that_begin_later_last_as_long_as_was_set() -> None:
    engine = Engine(lease_ms=1_000, retain_max_ms=50_000)
    engine.exports.leasing.keep_by(RetentionSettings(lease_ms=7_000, retain_max_ms=2_000))
    engine.serve("a", 2, lease=True)
    engine.serve("b", 2, params={"session": "s", "retain_ms": 60_000})
    assert [item.ttl_ms for item in engine.handed(Leased)] == [7_000, 2_000]


def test_leases_end_below_the_watermark_that_was_set() -> None:
    engine = Engine(free_watermark=0.0, lease_budget=0.5)
    engine.serve("a", 4, lease=True)
    engine.exports.each_step()
    assert len(engine.exports.leasing) == 1
    engine.exports.leasing.keep_by(RetentionSettings(free_watermark=0.9))
    engine.exports.each_step()
    assert len(engine.exports.leasing) == 0
