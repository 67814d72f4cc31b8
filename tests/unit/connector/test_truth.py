"""What an engine really holds, beside what its book has recorded."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.connector.support import BLOCK, chain
from tests.unit.connector.test_exports import Engine as PoolEngine
from tests.unit.host_tier.test_host_tier import Engine as HostEngine
from tests.unit.peers.support import Source, pin

from kvferry.core.events import Retained
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.exports import GROUP_BYTES
from kvferry_connectors.vllm.host import HostTier
from kvferry_connectors.vllm.items import HostOffered, Leased, Offered, Reused
from kvferry_connectors.vllm.truth import EngineTruth


class Engine:
    """A book and an export table that hold the same chain of four blocks."""

    def __init__(self) -> None:
        self.source = Source()
        self.book = Book(BLOCK, delay=1)
        self.hashes = chain("a", 4)
        self.pool = dict(enumerate(self.hashes))
        self.source.table.check = self.pool.get
        self.source.table.offer(self.hashes, range(4))
        self.give(Offered("o1", self.hashes, "r", ""))
        self.truth = EngineTruth(self.book, self.source.table, lambda: None)

    def give(self, item: object) -> None:
        list(self.book.translate(item))

    def lent(self, rev: int) -> int:
        offer = Retained(offer="o1", rev=rev, tier="cache", count=4, tail=b"", hashes=b"")
        return self.truth.held(offer)


def test_all_that_is_offered_is_lent() -> None:
    assert Engine().lent(1) == 4


def test_the_table_knows_of_a_reuse_before_the_book() -> None:
    engine = Engine()
    engine.source.table.reused(2)
    assert engine.lent(1) == 2
    engine.give(Reused([engine.hashes[2]]))
    assert engine.lent(1) == -1, "the offer has another rev now"
    assert engine.lent(2) == 2


def test_each_block_is_compared_with_the_pool() -> None:
    """A block that the engine changed without a word would be granted to nobody."""
    engine = Engine()
    engine.pool[1] = b"x" * 32
    assert engine.lent(1) == 1


def test_an_offer_that_ended_is_not_known() -> None:
    engine = Engine()
    engine.give(Reused(engine.hashes))
    assert engine.lent(1) == -1


def test_pins_that_stand_are_named() -> None:
    engine = Engine()
    assert engine.truth.pins() == []
    engine.source.table.pin("p0", pin("t", engine.hashes[:3], deadline_ms=60_000, ranks=1))
    ((transfer, target, blocks),) = [(p.transfer, p.target, p.blocks) for p in engine.truth.pins()]
    assert (transfer, target, blocks) == ("t", "p0", 3)


class Leasing(PoolEngine):
    """A lease on six blocks of vLLM's own pool, and what the book has recorded of it."""

    def __init__(self) -> None:
        super().__init__()
        self.exports.caching = True
        self.book = Book(BLOCK, delay=1)
        self.truth = EngineTruth(self.book, self.table, lambda: self.exports)
        _, self.hashes = self.serve("a", 6, lease=True)
        self.outbox.work()
        told = [out[1] for item in self.items for out in self.book.translate(item)]
        self.lease = next(e for e in told if isinstance(e, Retained) and e.tier == "hbm")
        self.held = list(self.exports.leasing.blocks_of(self.lease.offer))
        for block, chain_hash in zip(self.held, self.hashes, strict=True):
            block.set_block_hash(chain_hash + b"0" * GROUP_BYTES)

    def changed(self, place: int) -> int:
        """What is told once the pool has another block there."""
        self.held[place].reset_hash()
        self.held[place].set_block_hash(b"x" * 32 + b"0" * GROUP_BYTES)
        return self.truth.held(self.lease)


def test_a_lease_is_held_by_its_references_and_under_its_hashes() -> None:
    engine = Leasing()
    assert engine.handed(Leased)
    assert engine.truth.held(engine.lease) == 6
    assert [(one.lease, one.blocks) for one in engine.truth.leases()] == [(engine.lease.offer, 6)]


@pytest.mark.parametrize(("place", "held"), [(3, 3), (5, 5)])
def test_a_leased_block_that_is_another_is_found(place: int, held: int) -> None:
    """Where the record has a hash of it: every fourth of these, and the last."""
    assert Leasing().changed(place) == held


def test_a_leased_block_without_a_reference_or_a_hash_is_found() -> None:
    engine = Leasing()
    engine.held[2].reset_hash()
    assert engine.truth.held(engine.lease) == 2
    engine.pool.free_blocks(engine.held[1:2])
    assert engine.truth.held(engine.lease) == 1


def test_a_lease_that_the_engine_gave_up_behind_the_book_is_found() -> None:
    engine = Leasing()
    engine.exports.leasing._leases.clear()
    assert engine.truth.held(engine.lease) == 0
    assert list(engine.truth.leases()) == []
    other = msgspec.structs.replace(engine.lease, offer="life.9L9")
    assert engine.truth.held(other) == 0


def test_without_a_cache_of_its_own_the_references_count() -> None:
    engine = Leasing()
    engine.exports.caching = False
    assert engine.changed(3) == 6


class Hosted:
    """A run of five blocks in a host tier over two ranks."""

    def __init__(self) -> None:
        self.engine = HostEngine()
        self.hashes = chain("h", 5)
        self.engine.copy("c", self.hashes)
        book = Book(BLOCK, delay=1)
        (item,) = self.engine.told(HostOffered)
        (self.run,) = [out[1] for out in book.translate(item)]
        exports = PoolEngine().exports
        exports.host_tier(self.tier)
        self.truth = EngineTruth(book, self.engine.exports, lambda: exports)

    @property
    def tier(self) -> HostTier:
        return self.engine.tier

    def held(self) -> int:
        assert isinstance(self.run, Retained)
        return self.truth.held(self.run)


def test_what_lies_in_the_host_tier_s_slots_is_there() -> None:
    hosted = Hosted()
    assert hosted.held() == 5
    hosted.tier.table.discard([hosted.hashes[2]])
    assert hosted.held() == 2


def test_before_the_engine_has_a_pool_only_offers_are_told() -> None:
    engine = Engine()
    lease = Retained(offer="o1L1", rev=1, tier="hbm", count=4, tail=b"", hashes=b"")
    assert engine.truth.held(lease) == -1
    assert list(engine.truth.leases()) == []
    assert engine.lent(1) == 4
