"""What an engine really lends, beside what its book has recorded."""

from __future__ import annotations

from tests.unit.connector.support import BLOCK, chain
from tests.unit.peers.support import Source, pin

from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.items import Offered, Reused
from kvferry_connectors.vllm.truth import LendingTruth


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
        self.truth = LendingTruth(self.book, self.source.table)

    def give(self, item: object) -> None:
        list(self.book.translate(item))


def test_all_that_is_offered_is_lent() -> None:
    assert Engine().truth.lent("o1", 1) == 4


def test_the_table_knows_of_a_reuse_before_the_book() -> None:
    engine = Engine()
    engine.source.table.reused(2)
    assert engine.truth.lent("o1", 1) == 2
    engine.give(Reused([engine.hashes[2]]))
    assert engine.truth.lent("o1", 1) == -1, "the offer has another rev now"
    assert engine.truth.lent("o1", 2) == 2


def test_each_block_is_compared_with_the_pool() -> None:
    """A block that the engine changed without a word would be granted to nobody."""
    engine = Engine()
    engine.pool[1] = b"x" * 32
    assert engine.truth.lent("o1", 1) == 1


def test_an_offer_that_ended_is_not_known() -> None:
    engine = Engine()
    engine.give(Reused(engine.hashes))
    assert engine.truth.lent("o1", 1) == -1


def test_pins_that_stand_are_named() -> None:
    engine = Engine()
    assert engine.truth.pins() == []
    engine.source.table.pin("p0", pin("t", engine.hashes[:3], deadline_ms=60_000, ranks=1))
    ((transfer, target, blocks),) = [(p.transfer, p.target, p.blocks) for p in engine.truth.pins()]
    assert (transfer, target, blocks) == ("t", "p0", 3)
