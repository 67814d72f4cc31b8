from __future__ import annotations

import time

import pytest
from tests.unit.peers.support import SOURCE_LIFE, Source, chain, pin

from kvferry.core.events import PinEnded
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.peers.wire import Done


class TestOffers:
    def test_the_longest_prefix_counts(self, source: Source) -> None:
        hashes = source.offer("a", 4)
        longer = (*hashes, *chain("other", 2))
        assert source.table.held(longer) == 4
        assert source.table.held(longer[1:]) == 3
        assert source.table.held(chain("b", 3)) == 0
        assert source.table.held(()) == 0
        source.table.reused(2)
        assert source.table.held(hashes) == 2

    def test_the_first_block_of_a_hash_stays(self, source: Source) -> None:
        hashes = source.offer("a", 2)
        source.table.offer(hashes, [10, 11])
        assert source.grant("t", hashes).blocks == (0, 1)
        source.table.reused(10)
        assert source.table.held(hashes) == 2

    def test_another_block_of_a_hash_takes_the_place_of_one_that_is_reused(
        self, source: Source
    ) -> None:
        hashes = source.offer("a", 2)
        source.table.offer(hashes, [10, 11])
        source.grant("t", hashes)
        source.table.reused(1)
        assert source.table.take_reused() == []
        assert source.grant("u", hashes).blocks == (0, 11)
        assert not source.intact("t"), "it was granted the block that was reused"
        assert source.intact("u")
        source.table.reused(11)
        assert source.table.held(hashes) == 1
        assert source.table.take_reused() == [hashes[1]]
        source.table.withdraw(hashes)
        assert source.table.held(hashes) == source.table.offered() == 0
        source.table.reused(10)
        assert source.table.take_reused() == []

    def test_of_blocks_with_one_hash_the_preferred_is_granted(self, source: Source) -> None:
        hashes = source.offer("a", 3)
        source.table.prefer(hashes, [20, 21, 22])
        assert source.grant("s", hashes).blocks == (0, 1, 2), "none of these is offered"
        source.table.offer(hashes[1:], [11, 12])
        source.table.prefer(hashes[:2], [0, 11])
        assert source.grant("t", hashes).blocks == (0, 11, 2)
        source.table.reused(1)
        assert source.intact("t")
        assert source.grant("u", hashes).blocks == (0, 11, 2)

    def test_a_block_that_changed_unheard_makes_way_for_another(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        source.table.offer(hashes, [10])
        source.table.check = {10: hashes[0]}.get
        assert source.grant("t", hashes).blocks == (10,)

    def test_a_block_with_new_content_voids_its_old_offer_and_pins(self, source: Source) -> None:
        old = source.offer("a", 2)
        source.grant("t", old)
        source.table.offer(chain("b", 1), [1])
        assert source.table.held(old) == 1
        assert source.table.held(chain("b", 1)) == 1
        assert not source.intact("t")

    def test_offering_the_same_again_changes_nothing(self, source: Source) -> None:
        hashes = source.offer("a", 2)
        source.grant("t", hashes)
        source.table.offer(hashes, [0, 1])
        assert source.intact("t")

    def test_withdrawn_blocks_are_not_granted_but_standing_pins_are_good(
        self, source: Source
    ) -> None:
        hashes = source.offer("a", 3)
        source.grant("t", hashes)
        source.table.withdraw(hashes[1:])
        assert source.table.held(hashes) == 1
        assert source.table.offered() == 1
        assert source.intact("t")
        assert source.table.take_reused() == []

    def test_a_withdrawn_block_that_is_reused_still_voids_its_pin(self, source: Source) -> None:
        hashes = source.offer("a", 3)
        source.grant("t", hashes)
        source.table.withdraw(hashes)
        source.table.reused(1)
        assert not source.intact("t")

    def test_clear_ends_all_offers_and_voids_all_pins(self, source: Source) -> None:
        hashes = source.offer("a", 3)
        source.grant("t", hashes)
        source.table.clear()
        assert source.table.held(hashes) == 0
        assert not source.intact("t")
        source.table.offer(hashes, [0, 1, 2])
        source.grant("u", hashes)
        assert source.intact("u")

    def test_reused_hashes_are_told_once(self, source: Source) -> None:
        a, b = source.offer("a", 3), source.offer("b", 2, first_block=5)
        source.table.reused(1)
        source.table.reused(99)
        assert source.table.take_reused() == [a[1]]
        assert source.table.take_reused() == []
        source.table.clear()
        assert set(source.table.take_reused()) == {a[0], a[2], *b}
        assert source.table.reused_lost() == 0

    def test_unequal_lengths_are_a_defect_of_the_caller(self, source: Source) -> None:
        with pytest.raises(ValueError, match="zip"):
            source.table.offer(chain("a", 2), [1])

    def test_a_flood_of_reuses_stays_bounded(self, source: Source) -> None:
        hashes = source.offer("a", 3)
        for block in range(20_000):
            source.table.reused(block)
        assert source.table.held(hashes) == 0
        assert set(source.table.take_reused()) == set(hashes)

    def test_telling_of_a_reuse_is_cheap(self, source: Source) -> None:
        count = 20_000
        began_s = time.thread_time()
        for block in range(count):
            source.table.reused(block)
        assert (time.thread_time() - began_s) / count < 50e-6


class TestSecondOpinion:
    def test_a_changed_block_is_found_although_nobody_told(self, source: Source) -> None:
        hashes = source.offer("a", 3)
        present = dict(enumerate(hashes))
        source.table.check = present.get
        source.grant("t", hashes)
        assert source.intact("t")
        source.grant("u", hashes)
        present[1] = b"another"
        assert not source.intact("u")
        assert source.grant("v", hashes).blocks == (0,)
        assert source.table.take_reused() == [hashes[1]]


class TestEnds:
    def test_closing_ends_every_pin_and_grants_no_more(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        source.grant("t", hashes)
        source.grant("u", hashes)
        source.table.close()
        source.table.close()
        assert sorted(source.how()) == [("t", "closed"), ("u", "closed")]
        assert source.reason("v", hashes) == "not_ready"

    def test_a_failing_listener_does_not_cost_the_peer_its_answer(self) -> None:
        def fail(event: PinEnded) -> None:
            raise RuntimeError("listener")

        table = ExportTable(SOURCE_LIFE, on_pin_ended=fail)
        table.set_ranks([RankEndpoint(b"k" * 32, {})])
        table.offer(chain("a", 1), [0])
        table.pin("p0", pin("t", chain("a", 1)))
        assert table.done("p0", Done(transfer="t")).intact
