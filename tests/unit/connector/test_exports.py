"""Offers and leases on vLLM's own block pool."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.connector.support import chain, tracked
from vllm.v1.core.block_pool import BlockPool

from kvferry.core.events import PinEnded
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.wire import Done, Granted, Pin, Settled
from kvferry_connectors.vllm.exports import Exports
from kvferry_connectors.vllm.items import Cleared, Leased, LeaseEnded, Offered, Reused
from kvferry_connectors.vllm.options import Options

POOL = 33
USABLE = POOL - 1
"""The pool keeps one block for itself."""


class Engine:
    """A block pool with exports, and requests that come and go."""

    def __init__(self, **options: Any) -> None:
        self.pool = BlockPool(POOL, True, 32)
        self.ended: list[PinEnded] = []
        self.table = ExportTable("life", on_pin_ended=self.ended.append)
        self.table.set_ranks([RankEndpoint(key=b"k" * 32, backends={"tcp": b""})])
        self.items: list[Any] = []
        outbox = Outbox(translate=self._keep)
        self.now = 100.0
        given = {"lease_budget": 0.5, "free_watermark": 0.1, "lease_ms": 1000, **options}
        self.exports = Exports(
            self.pool,
            self.table,
            outbox,
            Options(**given),
            incarnation="life",
            caching=False,
            clock=lambda: self.now,
        )
        self.outbox = outbox

    def _keep(self, item: object) -> tuple[()]:
        self.items.append(item)
        return ()

    def serve(
        self,
        seed: str,
        blocks: int,
        *,
        lease: bool = False,
        after: list[bytes] | None = None,
        params: Any = None,
        salt: str | None = None,
    ) -> tuple[str, list[bytes]]:
        """A request takes blocks, computes them, ends and is offered."""
        held = self.pool.get_new_blocks(blocks)
        hashes = chain(seed, blocks, after)
        ids = [block.block_id for block in held]
        one = tracked(seed, hashes, params=params, salt=salt)
        if one.params.end:
            self.exports.leasing.session_ended(one.scope)
        offer, count = self.exports.offer(one, ids, blocks, awaited=lease)
        assert count == blocks
        self.pool.free_blocks(reversed(held))
        return offer, hashes

    def handed(self, kind: type) -> list[Any]:
        self.outbox.work()
        return [item for item in self.items if isinstance(item, kind)]

    def pin(self, hashes: list[bytes], transfer: str = "t") -> Any:
        return self.table.pin(
            "p0", Pin(transfer=transfer, incarnation="life", hashes=tuple(hashes))
        )

    def done(self, transfer: str = "t") -> Settled:
        return self.table.done("p0", Done(transfer=transfer, rank=0))

    @property
    def free(self) -> int:
        return int(self.pool.get_num_free_blocks())


def test_an_offer_reserves_nothing_and_ends_with_its_reuse() -> None:
    engine = Engine()
    offer, hashes = engine.serve("a", 6)
    assert engine.free == USABLE
    assert engine.table.held(hashes) == 6
    taken = engine.pool.get_new_blocks(USABLE)
    assert engine.table.held(hashes) == 0
    engine.exports.each_step()
    assert [item.offer for item in engine.handed(Offered)] == [offer]
    (reused,) = engine.handed(Reused)
    assert sorted(reused.hashes) == sorted(hashes)
    engine.pool.free_blocks(taken)


def test_a_read_of_reused_blocks_is_void() -> None:
    engine = Engine()
    _, hashes = engine.serve("a", 6)
    assert isinstance(engine.pin(hashes), Granted)
    assert engine.done().intact
    engine.pin(hashes, "late")
    engine.pool.get_new_blocks(USABLE)
    assert not engine.done("late").intact
    assert [end.how for end in engine.ended] == ["intact", "void"]


def test_a_block_that_a_request_still_uses_is_offered_and_not_given_away() -> None:
    engine = Engine()
    _, hashes = engine.serve("a", 4)
    shared = [b for b in engine.pool.blocks if b.block_id in engine.exports._watched]
    engine.pool.touch(shared)
    others = engine.pool.get_new_blocks(engine.free)
    assert engine.table.held(hashes) == 4
    engine.pool.free_blocks(shared)
    engine.pool.free_blocks(others)
    assert engine.free == USABLE


def test_a_lease_keeps_its_blocks_until_it_expires() -> None:
    engine = Engine()
    _, hashes = engine.serve("a", 6, lease=True)
    assert engine.free == USABLE - 6
    others = engine.pool.get_new_blocks(engine.free)
    assert engine.table.held(hashes) == 6
    engine.pool.free_blocks(others)
    engine.now += 0.5
    engine.exports.each_step()
    assert engine.free == USABLE - 6
    engine.now += 0.6
    engine.exports.each_step()
    assert engine.free == USABLE
    assert [item.reason for item in engine.handed(LeaseEnded)] == ["expired"]
    assert engine.table.held(hashes) == 6  # It is still offered from the cache.


def test_leases_stay_within_their_budget() -> None:
    engine = Engine(lease_budget=0.3)
    engine.serve("a", 6, lease=True)
    engine.serve("b", 6, lease=True)
    assert len(engine.handed(Leased)) == 1
    assert engine.free == USABLE - 6


def test_leases_end_before_a_request_has_to_wait() -> None:
    engine = Engine()
    engine.serve("a", 8, lease=True)
    engine.serve("b", 8, lease=True)
    need = USABLE - 10
    assert need > engine.free
    engine.exports.room_for(need)
    assert engine.free >= need
    assert {item.reason for item in engine.handed(LeaseEnded)} == {"pressure"}


def test_a_pinned_lease_is_spared() -> None:
    engine = Engine()
    _, pinned = engine.serve("a", 4, lease=True)
    engine.serve("b", 8, lease=True)
    engine.pin(pinned)
    engine.exports.room_for(USABLE)
    assert engine.free == USABLE - 4
    engine.done()
    engine.exports.room_for(USABLE)
    assert engine.free == USABLE


def test_the_same_chain_again_keeps_its_offer() -> None:
    engine = Engine()
    held = engine.pool.get_new_blocks(4)
    hashes, ids = chain("a", 4), [block.block_id for block in held]
    first = engine.exports.offer(tracked("a", hashes), ids, 4)
    assert engine.exports.offer(tracked("b", hashes), ids, 4) == first
    assert len(engine.handed(Offered)) == 1


def test_an_offer_that_a_longer_one_covered_is_made_anew() -> None:
    """The ledger ended it, so a lease or a hint must not name it again."""
    engine = Engine()
    held = engine.pool.get_new_blocks(6)
    hashes, ids = chain("a", 6), [block.block_id for block in held]
    short, _ = engine.exports.offer(tracked("a", hashes[:3]), ids[:3], 3)
    long, _ = engine.exports.offer(tracked("b", hashes), ids, 6)
    again, _ = engine.exports.offer(tracked("c", hashes[:3]), ids[:3], 3)
    assert len({short, long, again}) == 3
    assert engine.exports.offer(tracked("d", hashes), ids, 6)[0] == long


@pytest.mark.parametrize("same_block", [True, False])
def test_a_chain_whose_head_came_back_is_offered_anew(same_block: bool) -> None:
    """The ledger ended its offer with the head, so a lease or a hint must not name it again."""
    engine = Engine()
    held = engine.pool.get_new_blocks(4)
    hashes, ids = chain("a", 4), [block.block_id for block in held]
    first, _ = engine.exports.offer(tracked("a", hashes), ids, 4)
    engine.pool.free_blocks(held[:1])
    others = engine.pool.get_new_blocks(engine.free)
    head = next(b for b in others if (b.block_id == ids[0]) == same_block)
    engine.pool.free_blocks([block for block in others if block is not head])
    now = [head.block_id, *ids[1:]]
    engine.exports.offer(tracked("b", hashes[:1]), now[:1], 1)
    again, _ = engine.exports.offer(tracked("c", hashes), now, 4, awaited=True)
    assert again != first
    items = engine.handed(object)
    assert [type(item) for item in items] == [Offered, Reused, Offered, Offered, Leased]
    assert items[1] == Reused(hashes[:1]), "told before the hash is offered once more"
    assert items[-1].offer == again


def test_a_chain_that_is_pulled_on_top_of_a_leased_one_takes_its_place() -> None:
    """The ledger ends the shorter offer with the pull, and its lease ends with the request."""
    engine = Engine()
    held = engine.pool.get_new_blocks(6)
    hashes, ids = chain("a", 6), [block.block_id for block in held]
    short, _ = engine.exports.offer(tracked("a", hashes[:3]), ids[:3], 3, awaited=True)
    one = tracked("b", hashes)
    engine.exports.offer_pulled(one, ids, 6)
    assert engine.handed(LeaseEnded) == []
    # A sibling of the same pull may end first.
    long, _ = engine.exports.offer(tracked("c", hashes), ids, 6, awaited=True)
    assert engine.exports.offer(one, ids, 6, awaited=True)[0] == long
    assert [item.offer for item in engine.handed(Leased)] == [short, long]
    assert [(item.lease, item.reason) for item in engine.handed(LeaseEnded)] == [
        (engine.handed(Leased)[0].lease, "superseded")
    ]


@pytest.mark.parametrize("reason", ["cleared", "paused"])
def test_clearing_withdraws_everything(reason: str) -> None:
    engine = Engine()
    _, hashes = engine.serve("a", 6, lease=True)
    engine.pin(hashes)
    engine.exports.clear(reason)
    assert engine.free == USABLE
    assert engine.table.held(hashes) == 0
    assert not engine.done().intact
    assert engine.handed(Cleared) == [Cleared(reason)]
    # What is offered later is watched again.
    _, later = engine.serve("b", 6)
    assert engine.table.held(later) == 6
    engine.pool.get_new_blocks(USABLE)
    assert engine.table.held(later) == 0


def test_a_cache_reset_voids_the_pins() -> None:
    engine = Engine()
    _, hashes = engine.serve("a", 6)
    engine.pin(hashes)
    assert engine.pool.reset_prefix_cache()
    assert not engine.done().intact
    assert engine.table.held(hashes) == 0


def test_while_paused_nothing_is_offered() -> None:
    engine = Engine()
    engine.exports.paused = True
    held = engine.pool.get_new_blocks(2)
    ids = [block.block_id for block in held]
    assert engine.exports.offer(tracked("a", chain("a", 2)), ids, 2) == ("", 0)
    assert engine.table.offered() == 0
