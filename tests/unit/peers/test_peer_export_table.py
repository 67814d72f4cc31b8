from __future__ import annotations

import time

import pytest
from tests.unit.peers.support import SOURCE_LIFE, ManualClock, Source, chain, pin

from kvferry.core.events import PinEnded
from kvferry.node.export import ExportTable, RankEndpoint
from kvferry.node.pins import pack_blocks, verify_grant
from kvferry.node.wire import Abort, Done, Granted, Live, Ok, Refused, Renew, Settled


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(clock: ManualClock) -> Source:
    return Source(clock=clock)


def _intact(source: Source, transfer: str, rank: int = 0) -> bool:
    return source.table.done("p0", Done(transfer=transfer, rank=rank)).intact


def _reason(source: Source, transfer: str, hashes: tuple[bytes, ...], **fields: int) -> str:
    answer = source.table.pin("p0", pin(transfer, hashes, **fields))
    return answer.reason if isinstance(answer, Refused) else "granted"


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

    def test_a_block_with_new_content_voids_its_old_offer_and_pins(self, source: Source) -> None:
        old = source.offer("a", 2)
        source.grant("t", old)
        source.table.offer(chain("b", 1), [1])
        assert source.table.held(old) == 1
        assert source.table.held(chain("b", 1)) == 1
        assert not _intact(source, "t")

    def test_offering_the_same_again_changes_nothing(self, source: Source) -> None:
        hashes = source.offer("a", 2)
        source.grant("t", hashes)
        source.table.offer(hashes, [0, 1])
        assert _intact(source, "t")

    def test_withdrawn_blocks_are_not_granted_but_standing_pins_are_good(
        self, source: Source
    ) -> None:
        hashes = source.offer("a", 3)
        source.grant("t", hashes)
        source.table.withdraw(hashes[1:])
        assert source.table.held(hashes) == 1
        assert source.table.offered() == 1
        assert _intact(source, "t")
        assert source.table.take_reused() == []

    def test_a_withdrawn_block_that_is_reused_still_voids_its_pin(self, source: Source) -> None:
        hashes = source.offer("a", 3)
        source.grant("t", hashes)
        source.table.withdraw(hashes)
        source.table.reused(1)
        assert not _intact(source, "t")

    def test_clear_ends_all_offers_and_voids_all_pins(self, source: Source) -> None:
        hashes = source.offer("a", 3)
        source.grant("t", hashes)
        source.table.clear()
        assert source.table.held(hashes) == 0
        assert not _intact(source, "t")
        source.table.offer(hashes, [0, 1, 2])
        source.grant("u", hashes)
        assert _intact(source, "u")

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
        began_s = time.perf_counter()
        for block in range(count):
            source.table.reused(block)
        assert (time.perf_counter() - began_s) / count < 50e-6


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
        assert _intact(source, "t")
        assert source.ended[0].granted == 3

    def test_what_is_not_held_is_refused_and_recorded(self, source: Source) -> None:
        assert _reason(source, "t", chain("a", 2)) == "not_held"
        assert source.how() == [("t", "refused")]
        source.offer("a", 2)
        assert _reason(source, "t", chain("a", 2)) == "granted"

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
        assert _reason(source, "u", hashes) == "paused"
        assert source.table.pin("p0", pin("t", hashes)) == granted
        assert _intact(source, "t")
        source.table.pause(False)
        assert _reason(source, "u", hashes) == "granted"

    def test_pins_are_bounded(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        for i in range(16):
            source.grant(f"t{i}", hashes)
        assert _reason(source, "one-more", hashes) == "busy"
        assert _intact(source, "t0")
        assert _reason(source, "one-more", hashes) == "granted"

    @pytest.mark.parametrize("fields", [{"ranks": 0}, {"ranks": 100_000}, {"ranks": -1}])
    def test_absurd_pins_are_refused(self, source: Source, fields: dict[str, int]) -> None:
        assert _reason(source, "t", source.offer("a", 1), **fields) == "protocol"
        assert _reason(source, "x" * 1000, chain("a", 1)) == "protocol"
        assert _reason(source, "", chain("a", 1)) == "protocol"

    def test_nobody_can_touch_the_pin_of_another_node(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        source.grant("t", hashes)
        assert not source.table.done("d9", Done(transfer="t")).intact
        source.table.abort("d9", Abort(transfer="t"))
        source.table.live("d9", Live(transfers=()))
        assert isinstance(source.table.renew("d9", Renew(transfer="t", deadline_ms=9)), Refused)
        assert source.table.pins() == 1
        assert _intact(source, "t")

    def test_pinned_blocks_are_those_of_standing_pins(self, source: Source) -> None:
        source.grant("t", source.offer("a", 2))
        source.grant("u", source.offer("b", 2, first_block=7))
        assert source.table.pinned_blocks() == {0, 1, 7, 8}
        source.table.abort("p0", Abort(transfer="t"))
        assert source.table.pinned_blocks() == {7, 8}


class TestRepetition:
    def test_a_repeated_pin_gets_the_same_answer_whatever_happened_since(
        self, source: Source, clock: ManualClock
    ) -> None:
        hashes = source.offer("a", 3)
        granted = source.grant("t", hashes)
        clock.now_s += 1
        source.table.reused(1)
        source.table.offer(chain("a", 4)[3:], [3])
        assert source.grant("t", hashes) == granted
        assert not _intact(source, "t")

    def test_a_repeated_pin_keeps_the_pin(self, source: Source, clock: ManualClock) -> None:
        hashes = source.offer("a", 1)
        for _ in range(5):
            source.grant("t", hashes, deadline_ms=1000)
            clock.now_s += 0.9
        assert _intact(source, "t")

    def test_a_worker_pins_its_part_of_what_the_scheduler_pinned(self, source: Source) -> None:
        hashes = source.offer("a", 6)
        source.grant("t", hashes)
        part = source.grant("t", hashes[2:5], start=2)
        assert part.blocks == (2, 3, 4)
        assert verify_grant(source.keys[0], "t", part.grants[0], pack_blocks([2, 3, 4]))
        assert source.grant("t", hashes[2:5], start=2) == part
        assert source.table.pins() == 1
        assert _intact(source, "t")
        assert [event.granted for event in source.ended] == [6]

    def test_a_part_that_was_pinned_first_grows(self, source: Source) -> None:
        hashes = source.offer("a", 6)
        source.grant("t", hashes[4:], start=4)
        assert source.grant("t", hashes).blocks == (0, 1, 2, 3, 4, 5)
        source.table.reused(0)
        assert not _intact(source, "t")

    def test_a_part_that_is_not_held_is_refused_and_the_pin_stands(self, source: Source) -> None:
        hashes = source.offer("a", 2)
        source.grant("t", hashes)
        assert _reason(source, "t", chain("b", 2)) == "not_held"
        assert _intact(source, "t")
        assert source.how() == [("t", "intact")]

    def test_a_repeated_done_gets_the_same_answer(self, source: Source) -> None:
        hashes = source.offer("a", 2)
        source.grant("t", hashes)
        assert _intact(source, "t")
        source.table.reused(0)
        assert _intact(source, "t")
        source.grant("u", hashes[1:])
        source.table.reused(1)
        assert not _intact(source, "u")
        assert not _intact(source, "u")
        assert source.how() == [("t", "intact"), ("u", "void")]

    def test_abort_and_renew_may_be_repeated(self, source: Source) -> None:
        source.grant("t", source.offer("a", 1))
        renew = Renew(transfer="t", deadline_ms=5000)
        assert source.table.renew("p0", renew) == source.table.renew("p0", renew) == Ok()
        abort = Abort(transfer="t", why="x")
        assert source.table.abort("p0", abort) == source.table.abort("p0", abort) == Ok()
        assert source.table.renew("p0", renew) == Refused(reason="ended")
        assert source.how() == [("t", "abort")]
        assert source.ended[0].detail == "x"

    def test_after_its_end_a_transfer_is_ended(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        source.grant("t", hashes)
        assert _intact(source, "t")
        assert _reason(source, "t", hashes) == "ended"

    @pytest.mark.parametrize("message", ["done", "abort"])
    def test_an_unknown_transfer_leaves_a_tombstone_for_a_time(
        self, source: Source, clock: ManualClock, message: str
    ) -> None:
        hashes = source.offer("a", 1)
        if message == "done":
            assert not _intact(source, "t")
        else:
            source.table.abort("p0", Abort(transfer="t"))
        assert _reason(source, "t", hashes) == "ended"
        assert not _intact(source, "t")
        assert source.ended == []
        clock.now_s += 61
        assert source.table.tombstones() == 0
        assert _reason(source, "t", hashes) == "granted"

    def test_tombstones_are_bounded(self, source: Source) -> None:
        for i in range(1000):
            source.table.abort("p0", Abort(transfer=f"t{i}"))
        assert source.table.tombstones() == 8 * 16


class TestRanks:
    def test_a_pin_ends_with_its_last_rank(self) -> None:
        source = Source(ranks=2)
        source.grant("t", source.offer("a", 2), ranks=2)
        assert _intact(source, "t", rank=0)
        assert _intact(source, "t", rank=0)
        assert source.ended == []
        assert _intact(source, "t", rank=1)
        assert source.how() == [("t", "intact")]

    def test_each_rank_gets_its_own_truth(self) -> None:
        source = Source(ranks=2)
        source.grant("t", source.offer("a", 2), ranks=2)
        assert _intact(source, "t", rank=0)
        source.table.reused(1)
        assert not _intact(source, "t", rank=1)
        assert source.how() == [("t", "void")]
        assert _intact(source, "t", rank=0)
        assert not _intact(source, "t", rank=1)

    @pytest.mark.parametrize("rank", [-1, 2, 1 << 40])
    def test_a_rank_that_does_not_exist_settles_nothing(self, rank: int) -> None:
        source = Source(ranks=2)
        source.grant("t", source.offer("a", 1), ranks=2)
        assert not _intact(source, "t", rank=rank)
        assert source.table.pins() == 1


class TestDeadlines:
    def test_a_pin_ends_at_its_deadline_and_a_later_done_is_void(
        self, source: Source, clock: ManualClock
    ) -> None:
        hashes = source.offer("a", 1)
        source.grant("t", hashes, deadline_ms=1000)
        clock.now_s += 0.999
        source.table.sweep()
        assert source.ended == []
        clock.now_s += 0.001
        source.table.sweep()
        source.table.sweep()
        assert source.how() == [("t", "deadline")]
        assert source.ended[0].held_ms == pytest.approx(1000)
        assert not _intact(source, "t")
        assert _reason(source, "t", hashes) == "ended"
        assert source.how() == [("t", "deadline")]

    def test_renewal_moves_the_deadline_up_to_a_last_moment(
        self, source: Source, clock: ManualClock
    ) -> None:
        source.grant("t", source.offer("a", 1), deadline_ms=10_000)
        for _ in range(11):
            clock.now_s += 5
            answer = source.table.renew("p0", Renew(transfer="t", deadline_ms=10_000))
            assert answer == Ok()
        clock.now_s += 5
        assert source.table.renew("p0", Renew(transfer="t", deadline_ms=10_000)) == Refused(
            reason="ended"
        )
        assert source.how() == [("t", "deadline")]

    def test_renewal_never_shortens(self, source: Source, clock: ManualClock) -> None:
        source.grant("t", source.offer("a", 1), deadline_ms=10_000)
        source.table.renew("p0", Renew(transfer="t", deadline_ms=1))
        clock.now_s += 9
        assert _intact(source, "t")

    @pytest.mark.parametrize("asked_ms", [0, -5, 1 << 60])
    def test_odd_deadlines_are_brought_into_range(
        self, source: Source, clock: ManualClock, asked_ms: int
    ) -> None:
        granted = source.grant("t", source.offer("a", 1), deadline_ms=asked_ms)
        assert 1 <= granted.deadline_ms <= 60_000
        clock.now_s += 60
        assert source.table.pins() == 0

    def test_every_operation_notices_a_deadline(self, source: Source, clock: ManualClock) -> None:
        source.grant("t", source.offer("a", 1), deadline_ms=1000)
        clock.now_s += 2
        assert source.table.done("p0", Done(transfer="t")) == Settled(transfer="t", intact=False)
        assert source.how() == [("t", "deadline")]


class TestLive:
    def test_what_is_not_listed_ends(self, source: Source) -> None:
        hashes = source.offer("a", 1)
        source.grant("t", hashes)
        source.grant("u", hashes)
        source.table.live("p0", Live(transfers=("u", "unknown")))
        assert source.how() == [("t", "closed")]
        assert not _intact(source, "t")
        assert _intact(source, "u")

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


class TestSecondOpinion:
    def test_a_changed_block_is_found_although_nobody_told(self, source: Source) -> None:
        hashes = source.offer("a", 3)
        present = dict(enumerate(hashes))
        source.table.check = present.get
        source.grant("t", hashes)
        assert _intact(source, "t")
        source.grant("u", hashes)
        present[1] = b"another"
        assert not _intact(source, "u")
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
        assert _reason(source, "v", hashes) == "not_ready"

    def test_a_failing_listener_does_not_cost_the_peer_its_answer(self) -> None:
        def fail(event: PinEnded) -> None:
            raise RuntimeError("listener")

        table = ExportTable(SOURCE_LIFE, on_pin_ended=fail)
        table.set_ranks([RankEndpoint(b"k" * 32, {})])
        table.offer(chain("a", 1), [0])
        table.pin("p0", pin("t", chain("a", 1)))
        assert table.done("p0", Done(transfer="t")).intact
