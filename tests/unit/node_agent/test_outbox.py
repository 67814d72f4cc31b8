"""The outbox keeps its books, its bounds and its pace."""

from __future__ import annotations

import statistics
import threading
import time

import pytest
from tests.unit.node_agent.support import offer, turn

from kvferry.core.events import BLOCKS, FACTS, Event, Evicted, Produced, Requested
from kvferry.errors import ConfigError
from kvferry.node.outbox.items import Hole, Waiting
from kvferry.node.outbox.outbox import Outbox


def produced(number: int) -> Produced:
    return Produced(request=f"r{number}", start=0, count=1, tail=bytes(32))


def assert_books(outbox: Outbox) -> None:
    for lane in (FACTS, BLOCKS):
        counts = outbox.counts(lane)
        assert counts.handed == counts.stored + counts.waiting + counts.dropped
        assert counts.waiting >= 0


def test_facts_come_out_in_order_and_wait_until_stored() -> None:
    outbox = Outbox()
    for number in range(10):
        outbox.facts(turn(number), f"c{number}")
    taken = outbox.take_facts(100)
    assert [item.cause for item in taken if isinstance(item, Waiting)] == [
        f"c{n}" for n in range(10)
    ]
    assert outbox.counts(FACTS).waiting == 10
    outbox.stored(FACTS, 10)
    assert outbox.counts(FACTS).waiting == 0
    assert outbox.pressure == 0.0
    assert_books(outbox)


def test_nothing_new_starts_at_eighty_percent_but_outcomes_find_their_slot() -> None:
    outbox = Outbox(facts_max=100)
    assert all(outbox.reserve() for _ in range(30))
    for number in range(49):
        outbox.facts(turn(number))
    assert outbox.admit()
    assert outbox.reserve()
    assert not outbox.admit()
    assert not outbox.reserve()
    for number in range(200):
        outbox.facts(turn(number))
    dropped = outbox.counts(FACTS).dropped
    assert dropped == 49 + 200 - (100 - 31)
    for number in range(31):
        outbox.settle(turn(number))
    assert outbox.counts(FACTS).dropped == dropped
    assert outbox.reserved == 0
    outbox.unreserve()
    assert outbox.reserved == 0
    assert_books(outbox)


def test_an_unreserved_slot_is_free_again() -> None:
    outbox = Outbox(facts_max=16)
    while outbox.reserve():
        pass
    outbox.unreserve()
    assert outbox.reserve()


def test_outcomes_without_a_reservation_stay_within_the_bound() -> None:
    outbox = Outbox(facts_max=16)
    for number in range(40):
        outbox.settle(turn(number))
    counts = outbox.counts(FACTS)
    assert (counts.waiting, counts.dropped) == (16, 24)
    assert_books(outbox)


def test_dropped_facts_leave_one_hole_where_they_were() -> None:
    outbox = Outbox(facts_max=16)
    for number in range(20):
        outbox.facts(turn(number))
    taken = outbox.take_facts(10)
    outbox.stored(FACTS, len(taken))
    outbox.facts(turn(99))
    rest = outbox.take_facts(100)
    kinds = [type(item) for item in rest]
    assert kinds == [Waiting] * 6 + [Hole, Waiting]
    hole = rest[6]
    assert isinstance(hole, Hole)
    assert hole.count == 4
    assert_books(outbox)


def test_a_hole_remembers_what_an_inventory_needs_and_says_when_it_cannot() -> None:
    outbox = Outbox(facts_max=16)
    for number in range(16):
        outbox.facts(turn(number))
    outbox.facts(turn(16))
    outbox.facts(offer("o1", 2))
    outbox.facts(Requested(request="r", transfer="t1"))
    hole = outbox.take_facts(100)[-1]
    assert isinstance(hole, Hole)
    assert (hole.count, len(hole.events), hole.blind) == (3, 2, False)
    for number in range(40):
        outbox.facts(offer(f"o{number}", 1))
    blind = outbox.take_facts(100)[-1]
    assert isinstance(blind, Hole)
    assert (blind.count, blind.events, blind.blind) == (40, [], True)


def test_detail_overflows_into_a_counted_gap() -> None:
    outbox = Outbox(blocks_max=4)
    for number in range(10):
        outbox.blocks(produced(number))
    assert outbox.take_blocks_gap() == 6
    assert outbox.take_blocks_gap() == 0
    assert len(outbox.take_blocks(100)) == 4
    assert_books(outbox)


def test_steps_are_translated_later_and_into_both_lanes() -> None:
    def translate(item: object) -> list[tuple[str, Event, str]]:
        assert isinstance(item, int)
        return [(BLOCKS, produced(item), "b"), (FACTS, turn(item), "f")]

    outbox = Outbox(translate=translate)
    outbox.hand_over(1)
    outbox.hand_over(2)
    assert outbox.counts(FACTS).handed == 0
    assert outbox.untranslated == 2
    assert outbox.work()
    assert [type(i) for i in outbox.take_facts(10)] == [Waiting, Waiting]
    assert len(outbox.take_blocks(10)) == 2
    assert_books(outbox)


def numbers(item: object) -> list[tuple[str, Event, str]]:
    """A translator whose fact says which step it came from."""
    assert isinstance(item, int)
    return [(FACTS, turn(item), str(item))]


def causes(outbox: Outbox) -> list[str]:
    """Which steps' facts wait, with ``-`` for a hole."""
    return [i.cause if isinstance(i, Waiting) else "-" for i in outbox.take_facts(100)]


def test_as_many_steps_wait_as_may() -> None:
    outbox = Outbox(blocks_max=3, translate=numbers)
    for number in range(3):
        outbox.hand_over(number)
    outbox.work()
    assert causes(outbox) == ["0", "1", "2"]
    assert outbox.take_blocks_gap() == 0
    assert_books(outbox)


@pytest.mark.parametrize("handed", [4, 5, 500])
def test_the_oldest_of_too_many_steps_are_a_gap_of_detail(handed: int) -> None:
    outbox = Outbox(blocks_max=3, translate=numbers)
    for number in range(handed):
        outbox.hand_over(number)
    assert outbox.untranslated <= 4
    outbox.work()
    assert causes(outbox) == [str(number) for number in range(handed - 3, handed)]
    assert outbox.take_blocks_gap() == 1
    assert outbox.counts(FACTS).dropped == 0, "no step bore facts before"
    assert_books(outbox)


def test_losing_steps_that_bear_facts_makes_a_hole_where_they_were() -> None:
    outbox = Outbox(blocks_max=1, translate=numbers)
    outbox.hand_over(0)
    outbox.work()
    for number in range(1, 5):
        outbox.hand_over(number)
    outbox.work()
    taken = outbox.take_facts(10)
    assert [type(item) for item in taken] == [Waiting, Hole, Waiting]
    hole, after = taken[1], taken[2]
    assert isinstance(hole, Hole)
    assert (hole.count, hole.blind) == (1, True)
    assert isinstance(after, Waiting)
    assert after.cause == "4"
    assert_books(outbox)


def test_steps_left_while_others_are_translated_cannot_hide_what_was_lost() -> None:
    def busy_engine(item: object) -> list[tuple[str, Event, str]]:
        if item == 0:
            for number in range(10, 20):
                outbox.hand_over(number)
        return [(FACTS, turn(0), str(item))]

    outbox = Outbox(blocks_max=4, translate=busy_engine)
    outbox.hand_over(0)
    outbox.hand_over(1)
    outbox.work()
    outbox.work()
    assert causes(outbox) == ["0", "-", "16", "17", "18", "19"]
    assert outbox.take_blocks_gap() == 1
    assert_books(outbox)


def test_a_failing_translator_costs_a_gap_and_one_log_entry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(item: object) -> list[tuple[str, Event, str]]:
        raise ValueError("boom")

    outbox = Outbox(translate=broken)
    for number in range(3):
        outbox.hand_over(number)
    outbox.work()
    assert outbox.take_blocks_gap() == 3
    assert len([r for r in caplog.records if "cannot be translated" in r.message]) == 1
    assert_books(outbox)


def test_discarding_keeps_the_books_and_closes_admission_only_with_a_reason() -> None:
    outbox = Outbox()
    outbox.facts(turn(1))
    outbox.blocks(produced(1))
    outbox.discard()
    assert outbox.admit()
    assert outbox.reserve()
    outbox.settle(turn(2))
    outbox.facts(turn(3))
    assert outbox.counts(FACTS).dropped == 3
    assert outbox.counts(BLOCKS).dropped == 1
    outbox.discard("somebody else has our name")
    assert not outbox.admit()
    assert not outbox.reserve()
    assert_books(outbox)


def test_bounds_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="facts_max=2"):
        Outbox(facts_max=2)


def test_the_books_balance_under_many_threads() -> None:
    outbox = Outbox(facts_max=512, blocks_max=512, translate=lambda item: [])
    running = threading.Event()
    per_thread = 3000

    def engine(name: int) -> None:
        running.wait()
        for number in range(per_thread):
            if outbox.reserve():
                outbox.settle(turn(number))
            else:
                outbox.facts(Evicted(offer=f"o{name}", rev=number, keep=0, reason="reuse"))
            outbox.blocks(produced(number))
            outbox.hand_over(number)

    threads = [threading.Thread(target=engine, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    running.set()
    in_holes = gaps = 0
    while any(thread.is_alive() for thread in threads) or outbox.has_facts():
        outbox.work()
        facts = outbox.take_facts(64)
        outbox.stored(FACTS, sum(isinstance(item, Waiting) for item in facts))
        in_holes += sum(item.count for item in facts if isinstance(item, Hole))
        outbox.stored(BLOCKS, len(outbox.take_blocks(64)))
        gaps += outbox.take_blocks_gap()
        # Give the hand-over a chance to overflow.
        time.sleep(0.0005)
    outbox.work()
    outbox.stored(BLOCKS, len(outbox.take_blocks(100_000)))
    gaps += outbox.take_blocks_gap()
    facts_counts, blocks_counts = outbox.counts(FACTS), outbox.counts(BLOCKS)
    assert facts_counts.handed == 4 * per_thread
    assert facts_counts.waiting == 0
    assert facts_counts.dropped == in_holes > 0
    assert blocks_counts.waiting == 0
    assert blocks_counts.dropped == gaps > 0
    assert outbox.reserved == 0


def test_a_hand_over_costs_next_to_nothing() -> None:
    outbox = Outbox(translate=lambda item: [])
    step = [(n, bytes(32)) for n in range(512)]
    costs = []
    for _ in range(2000):
        begun = time.perf_counter_ns()
        outbox.hand_over(step)
        costs.append(time.perf_counter_ns() - begun)
    # The figure to reach is 5 us p99 (tests/bench); here only a blunder is to be caught.
    assert statistics.median(costs) < 50_000
