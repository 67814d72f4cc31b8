"""The host tier on vLLM's own block pool: copies, what ends them, and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.connector.support import chain
from vllm.v1.core.block_pool import BlockPool

from kvferry.core.events import PinEnded
from kvferry.node.export.host_copies import WAITING_MAX, Pace, ToHost
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.wire import Done, Granted, Pin
from kvferry_connectors.vllm.host import PIECE_BLOCKS_MAX, HostTier
from kvferry_connectors.vllm.items import HostEvicted, HostOffered
from kvferry_connectors.vllm.metadata import CopyOrder, RankCopied

POOL = 200
BLOCK_BYTES = 1000


class Engine:
    """A block pool, and a host tier over two ranks that do as the test says."""

    def __init__(self, slots: int = 100, ranks: int = 2) -> None:
        self.pool = BlockPool(POOL, True, 32)
        self.ended: list[PinEnded] = []
        self.exports = ExportTable("life", on_pin_ended=self.ended.append)
        self.exports.set_ranks([RankEndpoint(b"k" * 32, {"tcp": b""}, {"tcp": b"host"})] * ranks)
        self.items: list[Any] = []
        self.outbox = Outbox(translate=self._keep)
        self.now = 0.0
        self.tier = HostTier(
            self.hash_of,
            self.exports,
            self.outbox,
            slots=slots,
            ranks=ranks,
            engine_blocks=POOL,
            block_bytes=BLOCK_BYTES,
            bytes_per_s=1e12,
            clock=lambda: self.now,
        )
        self.exports.check = self.hash_of
        self.ranks = ranks
        self.hashes: dict[int, bytes] = {}
        self.moved: list[tuple[str, bool]] = []
        self.lost: list[str] = []
        self.tier.on_moved = lambda key, whole: self.moved.append((key, whole))
        self.tier.on_lost = self.lost.append

    def _keep(self, item: object) -> tuple[()]:
        self.items.append(item)
        return ()

    def hash_of(self, block: int) -> bytes | None:
        return self.tier.present(block) if block >= POOL else self.hashes.get(block)

    def holds(self, key: str, hashes: list[bytes], first: int) -> ToHost:
        """The engine has a chain in blocks ``first`` and on."""
        blocks = list(range(first, first + len(hashes)))
        self.hashes.update(zip(blocks, hashes, strict=True))
        return ToHost(key, hashes, blocks, request=f"r-{key}", session=f"s-{key}")

    def step(self) -> CopyOrder | None:
        self.now += 1.0
        return self.tier.each_step()

    def report(self, order: CopyOrder, *, ok: bool = True) -> None:
        for rank in range(self.ranks):
            self.tier.copied(RankCopied(order.id, rank, ok or rank == 0))

    def copy(self, key: str, hashes: list[bytes], first: int = 1) -> None:
        """Copy a chain to its end."""
        self.tier.copy(self.holds(key, hashes, first))
        before = len(self.moved)
        for _ in range(20):
            order = self.step()
            if order is not None:
                self.report(order)
            if len(self.moved) > before:
                return
        raise AssertionError("the copy has no end")

    def told(self, kind: type) -> list[Any]:
        self.outbox.work()
        return [item for item in self.items if isinstance(item, kind)]

    def pin(self, hashes: list[bytes], name: str = "t") -> Any:
        frame = Pin(transfer=name, incarnation="life", hashes=tuple(hashes), host=True)
        return self.exports.pin("p0", frame)

    def reuses(self, block: int) -> None:
        """The engine hands a block out again."""
        self.hashes.pop(block, None)
        self.tier.reused(block)


def test_a_chain_is_copied_piece_by_piece_and_then_offered() -> None:
    engine, hashes = Engine(), chain("a", PIECE_BLOCKS_MAX + 10)
    engine.tier.copy(engine.holds("x.1", hashes, 1))
    first = engine.step()
    assert first is not None
    assert first.blocks == tuple(range(1, PIECE_BLOCKS_MAX + 1))
    assert engine.step() is None, "one piece at a time"
    engine.tier.copied(RankCopied(first.id, 0, True))
    assert engine.tier.table.reach(hashes, 0, len(hashes)) == 0, "not before every rank has it"
    engine.tier.copied(RankCopied(first.id, 1, True))
    assert engine.tier.table.reach(hashes, 0, len(hashes)) == PIECE_BLOCKS_MAX
    second = engine.step()
    assert second is not None
    engine.report(second)
    assert engine.moved == [("x.1", True)]
    (offered,) = engine.told(HostOffered)
    assert (offered.offer, offered.hashes) == ("x.1H1", hashes)
    assert (offered.request, offered.session) == ("r-x.1", "s-x.1")
    granted = engine.pin(hashes)
    assert isinstance(granted, Granted)
    assert granted.blocks == tuple(POOL + slot for slot in (*first.slots, *second.slots))


def test_only_what_is_not_there_yet_is_copied() -> None:
    engine, longer = Engine(), chain("a", 10)
    engine.copy("x.1", longer[:6])
    engine.tier.copy(engine.holds("x.2", longer, 50))
    order = engine.step()
    assert order is not None
    assert order.blocks == (56, 57, 58, 59)
    engine.report(order)
    assert [item.hashes for item in engine.told(HostOffered)] == [longer[:6], longer]
    assert engine.tier.table.runs == 1
    assert engine.lost == ["x.1"], "it is part of the longer one now"


@pytest.mark.parametrize("how", ["told", "found"])
def test_a_block_that_is_reused_while_it_is_copied_is_not_kept(how: str) -> None:
    engine, hashes = Engine(), chain("a", 8)
    engine.tier.copy(engine.holds("x.1", hashes, 1))
    order = engine.step()
    assert order is not None
    if how == "told":
        engine.tier.reused(5)  # And computed again into the same block: its hash says nothing.
    else:
        engine.hashes[5] = b"another"
    engine.report(order)
    assert engine.tier.table.reach(hashes, 0, 8) == 4
    assert engine.moved == [("x.1", False)]
    assert [item.hashes for item in engine.told(HostOffered)] == [hashes[:4]]
    assert engine.tier.table.free == 100 - 4


def test_what_is_gone_before_its_turn_is_not_copied() -> None:
    engine, hashes = Engine(), chain("a", 8)
    engine.tier.copy(engine.holds("x.1", hashes, 1))
    engine.reuses(1)
    assert engine.step() is None
    assert engine.moved == [("x.1", False)]
    assert engine.told(HostOffered) == []
    assert engine.tier.table.free == 100


def test_a_rank_that_fails_keeps_nothing_anywhere() -> None:
    engine, hashes = Engine(), chain("a", 8)
    engine.tier.copy(engine.holds("x.1", hashes, 1))
    order = engine.step()
    assert order is not None
    engine.report(order, ok=False)
    assert (len(engine.tier.table), engine.tier.table.free) == (0, 100)
    assert engine.moved == [("x.1", False)]


def test_a_chain_that_lost_a_part_is_copied_anew() -> None:
    engine, a, b = Engine(slots=10), chain("a", 6), chain("b", 8)
    engine.copy("x.1", a, 1)
    engine.copy("x.2", b, 20)
    assert engine.lost == ["x.1"]
    assert [item.reason for item in engine.told(HostEvicted)] == ["pressure"]
    engine.copy("x.1", a, 1)
    assert engine.tier.table.reach(a, 0, 6) == 6
    assert [item.offer for item in engine.told(HostOffered)] == ["x.1H1", "x.2H2", "x.1H3"]
    engine.tier.end("x.1", "session_end")
    assert engine.tier.table.reach(a, 0, 6) == 0
    assert engine.tier.table.free + len(engine.tier.table) == 10


def test_what_a_peer_reads_stays_until_it_has_been_read() -> None:
    engine, hashes = Engine(slots=10), chain("a", 6)
    engine.copy("x.1", hashes, 1)
    for block in range(1, 7):
        engine.reuses(block)
    assert isinstance(engine.pin(hashes), Granted)
    engine.tier.end("x.1", "session_end")
    engine.copy("x.2", chain("b", 8), 20)
    assert engine.tier.table.reach(hashes, 0, 6) == 6
    assert engine.exports.done("p0", Done(transfer="t")).intact
    engine.step()
    assert engine.tier.table.reach(hashes, 0, 6) == 0
    assert [item.reason for item in engine.told(HostEvicted)] == ["session_end"]


def test_a_load_holds_its_slots_and_damage_ends_what_it_touched() -> None:
    engine, hashes = Engine(slots=10), chain("a", 6)
    engine.copy("x.1", hashes, 1)
    slots = engine.tier.hold(hashes[2:])
    assert len(slots) == 4
    engine.copy("x.2", chain("b", 8), 20)
    assert engine.tier.table.reach(hashes, 0, 6) == 6, "nobody takes what is being loaded"
    engine.tier.release(slots, hashes[2:])
    assert engine.tier.table.reach(hashes, 0, 6) == 2
    assert engine.told(HostEvicted)[-1].reason == "damaged"
    assert engine.lost == ["x.1"]


def test_clearing_ends_copies_under_way_and_pins() -> None:
    engine, a, b = Engine(), chain("a", 6), chain("b", 6)
    engine.copy("x.1", a, 1)
    assert isinstance(engine.pin(a), Granted)
    engine.tier.copy(engine.holds("x.2", b, 20))
    engine.tier.copy(engine.holds("x.3", chain("c", 6), 40))
    order = engine.step()
    assert order is not None
    engine.tier.clear("cleared")
    assert engine.moved[1:] == [("x.2", False), ("x.3", False)]
    assert not engine.exports.done("p0", Done(transfer="t")).intact
    engine.report(order)
    assert (len(engine.tier.table), engine.tier.table.free) == (0, 100)
    assert engine.step() is None


def test_no_more_wait_than_may() -> None:
    engine = Engine()
    for nth in range(WAITING_MAX + 1):
        engine.tier.copy(engine.holds(f"x.{nth}", chain(f"s{nth}", 1), 1))
    assert engine.moved == [(f"x.{WAITING_MAX}", False)]


def test_copies_keep_to_their_rate() -> None:
    pace = Pace(100.0)
    assert pace.ready(5.0)
    pace.passed(50, 5.0)
    assert not pace.ready(5.4)
    assert pace.ready(5.5)
    pace.passed(50, 9.0)
    assert not pace.ready(9.4), "what was not used before is not made up for"
