from __future__ import annotations

import pytest
from tests.unit.peers.support import SOURCE_LIFE, Source, chain, pin

from kvferry.core.events import PinEnded
from kvferry.node.export.grants import pack_blocks, verify_grant
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.peers.wire import Abort, Done, Granted, Live, Refused, Renew


class TestPins:
    def test_a_grant_is_signed_for_each_rank_and_names_its_backends(self) -> None:
        source = Source(ranks=2)
        granted = source.grant("t", source.offer("a", 3), ranks=2)
        assert granted.blocks == (0, 1, 2)
        assert granted.incarnation == SOURCE_LIFE
        assert granted.backends == ({"fake": b"rank0"}, {"fake": b"rank1"})
        packed = pack_blocks(granted.blocks)
        for key, grant in zip(source.keys, granted.grants, strict=True):
            assert verify_grant(key, "t", grant, packed)
            assert not verify_grant(key, "t", grant, pack_blocks([0, 1, 3]))
        assert not verify_grant(source.keys[0], "t", granted.grants[1], packed)

    def test_a_prefix_is_granted_in_part(self, source: Source) -> None:
        hashes = source.offer("a", 5)
        source.table.reused(3)
        assert source.grant("t", hashes).blocks == (0, 1, 2)
        assert source.intact("t")
        assert source.ended[0].granted == 3

    def test_what_is_not_held_is_refused_and_recorded(self, source: Source) -> None:
        assert source.reason("t", chain("a", 2)) == "not_held"
        assert source.how() == [("t", "refused")]
        source.offer("a", 2)
        assert source.reason("t", chain("a", 2)) == "granted"

    def test_before_the_ranks_are_known_nothing_is_granted(self) -> None:
        ended: list[PinEnded] = []
        table = ExportTable(SOURCE_LIFE, on_pin_ended=ended.append)
        table.offer(chain("a", 1), [0])
        answer = table.pin("p0", pin("t", chain("a", 1)))
        assert answer == Refused(reason="not_ready")
        table.set_ranks([RankEndpoint(b"k" * 32, {})])
        assert isinstance(table.pin("p0", pin("t", chain("a", 1))), Granted)

    def test_another_process_life_is_refused(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        frame = pin("t", hashes)
        stale = type(frame)(transfer="t", incarnation="dead", hashes=hashes)
        answer = source.table.pin("p0", stale)
        assert isinstance(answer, Refused)
        assert answer.reason == "incarnation"
        any_life = type(frame)(transfer="t", incarnation="", hashes=hashes)
        assert isinstance(source.table.pin("p0", any_life), Granted)

    def test_a_pause_refuses_new_pins_only(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        granted = source.grant("t", hashes)
        source.table.pause(True)
        assert source.reason("u", hashes) == "paused"
        assert source.table.pin("p0", pin("t", hashes)) == granted
        assert source.intact("t")
        source.table.pause(False)
        assert source.reason("u", hashes) == "granted"

    def test_pins_are_bounded(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        for i in range(16):
            source.grant(f"t{i}", hashes)
        assert source.reason("one-more", hashes) == "busy"
        assert source.intact("t0")
        assert source.reason("one-more", hashes) == "granted"

    @pytest.mark.parametrize("fields", [{"ranks": 0}, {"ranks": 100_000}, {"ranks": -1}])
    def test_absurd_pins_are_refused(self, source: Source, fields: dict[str, int]) -> None:
        assert source.reason("t", source.offer("a", 1), **fields) == "protocol"
        assert source.reason("x" * 1000, chain("a", 1)) == "protocol"
        assert source.reason("", chain("a", 1)) == "protocol"

    def test_nobody_can_touch_the_pin_of_another_node(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        source.grant("t", hashes)
        assert not source.table.done("d9", Done(transfer="t")).intact
        source.table.abort("d9", Abort(transfer="t"))
        source.table.live("d9", Live(transfers=()))
        assert isinstance(source.table.renew("d9", Renew(transfer="t", deadline_ms=9)), Refused)
        assert source.table.pins() == 1
        assert source.intact("t")

    def test_pinned_blocks_are_those_of_standing_pins(self, source: Source) -> None:
        source.grant("t", source.offer("a", 2))
        source.grant("u", source.offer("b", 2, first_block=7))
        assert source.table.pinned_blocks() == {0, 1, 7, 8}
        source.table.abort("p0", Abort(transfer="t"))
        assert source.table.pinned_blocks() == {7, 8}


class TestRanks:
    def test_a_pin_ends_with_its_last_rank(self) -> None:
        source = Source(ranks=2)
        source.grant("t", source.offer("a", 2), ranks=2)
        assert source.intact("t", rank=0)
        assert source.intact("t", rank=0)
        assert source.ended == []
        assert source.intact("t", rank=1)
        assert source.how() == [("t", "intact")]

    def test_each_rank_gets_its_own_truth(self) -> None:
        source = Source(ranks=2)
        source.grant("t", source.offer("a", 2), ranks=2)
        assert source.intact("t", rank=0)
        source.table.reused(1)
        assert not source.intact("t", rank=1)
        assert source.how() == [("t", "void")]
        assert source.intact("t", rank=0)
        assert not source.intact("t", rank=1)

    @pytest.mark.parametrize("rank", [-1, 2, 1 << 40])
    def test_a_rank_that_does_not_exist_settles_nothing(self, rank: int) -> None:
        source = Source(ranks=2)
        source.grant("t", source.offer("a", 1), ranks=2)
        assert not source.intact("t", rank=rank)
        assert source.table.pins() == 1


class TestLive:
    def test_what_is_not_listed_ends(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        source.grant("t", hashes)
        source.grant("u", hashes)
        source.table.live("p0", Live(transfers=("u", "unknown")))
        assert source.how() == [("t", "closed")]
        assert not source.intact("t")
        assert source.intact("u")

    def test_a_process_speaks_only_for_the_pins_it_asked_for(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        frame = pin("t", hashes)
        source.table.pin("p0", frame, client="scheduler")
        source.table.live("p0", Live(transfers=()), client="worker")
        assert source.table.pins() == 1
        source.table.pin("p0", frame, client="worker")
        source.table.live("p0", Live(transfers=()), client="worker")
        assert source.table.pins() == 1
        source.table.live("p0", Live(transfers=()), client="scheduler")
        assert source.how() == [("t", "closed")]
