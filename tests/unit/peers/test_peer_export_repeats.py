from __future__ import annotations

import pytest
from tests.unit.peers.support import ManualClock, Source, chain

from kvferry.node.export.grants import pack_blocks, verify_grant
from kvferry.node.peers.wire import Abort, Done, Ok, Refused, Renew, Settled


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
        assert not source.intact("t")

    def test_a_partial_grant_does_not_grow_when_it_is_repeated(self, source: Source) -> None:
        hashes = chain("a", 4)
        source.offer("a", 2)
        granted = source.grant("t", hashes)
        source.offer("a", 4)
        assert source.grant("t", hashes) == granted
        assert source.grant("t", hashes[:3]).blocks == (0, 1, 2)
        assert source.grant("u", hashes).blocks == (0, 1, 2, 3)

    def test_a_repeated_pin_keeps_the_pin(self, source: Source, clock: ManualClock) -> None:
        hashes = source.offer("a", 1)
        for _ in range(5):
            source.grant("t", hashes, deadline_ms=1000)
            clock.now_s += 0.9
        assert source.intact("t")

    def test_a_worker_pins_its_part_of_what_the_scheduler_pinned(self, source: Source) -> None:
        hashes = source.offer("a", 6)
        source.grant("t", hashes)
        part = source.grant("t", hashes[2:5], start=2)
        assert part.blocks == (2, 3, 4)
        assert verify_grant(source.keys[0], "t", part.grants[0], pack_blocks([2, 3, 4]))
        assert source.grant("t", hashes[2:5], start=2) == part
        assert source.table.pins() == 1
        assert source.intact("t")
        assert [event.granted for event in source.ended] == [6]

    def test_a_part_that_was_pinned_first_grows(self, source: Source) -> None:
        hashes = source.offer("a", 6)
        source.grant("t", hashes[4:], start=4)
        assert source.grant("t", hashes).blocks == (0, 1, 2, 3, 4, 5)
        source.table.reused(0)
        assert not source.intact("t")

    def test_a_part_that_is_not_held_is_refused_and_the_pin_stands(self, source: Source) -> None:
        hashes = source.offer("a", 2)
        source.grant("t", hashes)
        assert source.reason("t", chain("b", 2)) == "not_held"
        assert source.intact("t")
        assert source.how() == [("t", "intact")]

    def test_a_repeated_done_gets_the_same_answer(self, source: Source) -> None:
        hashes = source.offer("a", 2)
        source.grant("t", hashes)
        assert source.intact("t")
        source.table.reused(0)
        assert source.intact("t")
        source.grant("u", hashes[1:])
        source.table.reused(1)
        assert not source.intact("u")
        assert not source.intact("u")
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
        assert source.intact("t")
        assert source.reason("t", hashes) == "ended"

    @pytest.mark.parametrize("message", ["done", "abort"])
    def test_an_unknown_transfer_leaves_a_tombstone_for_a_time(
        self, source: Source, clock: ManualClock, message: str
    ) -> None:
        hashes = source.offer("a", 1)
        if message == "done":
            assert not source.intact("t")
        else:
            source.table.abort("p0", Abort(transfer="t"))
        assert source.reason("t", hashes) == "ended"
        assert not source.intact("t")
        assert source.ended == []
        clock.now_s += 61
        assert source.table.tombstones() == 0
        assert source.reason("t", hashes) == "granted"

    def test_tombstones_are_bounded(self, source: Source) -> None:
        for i in range(1000):
            source.table.abort("p0", Abort(transfer=f"t{i}"))
        assert source.table.tombstones() == 8 * 16


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
        assert not source.intact("t")
        assert source.reason("t", hashes) == "ended"
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
        assert source.intact("t")

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
