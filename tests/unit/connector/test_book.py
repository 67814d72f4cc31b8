"""What a step's hand-over becomes in the ledger."""

from __future__ import annotations

import pytest
from tests.unit.connector.support import BLOCK, chain, tracked

from kvferry.core.events import BLOCKS, FACTS, Event, Produced, RequestEnded, Retained
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.items import Arrived, Cleared, Finished, Offered, Reused, Step
from kvferry_connectors.vllm.tracked import Tracked


class Desk:
    """A book and all that came out of it."""

    def __init__(self, delay: int = 1) -> None:
        self.book = Book(BLOCK, delay=delay)
        self.lanes: list[str] = []
        self.events: list[Event] = []

    def give(self, *items: object) -> None:
        for item in items:
            for lane, event, _ in self.book.translate(item):
                self.lanes.append(lane)
                self.events.append(event)

    @property
    def produced(self) -> list[tuple[int, int, str]]:
        return [(e.start, e.count, e.via) for e in self.events if isinstance(e, Produced)]

    @property
    def ended(self) -> RequestEnded:
        (only,) = [e for e in self.events if isinstance(e, RequestEnded)]
        return only


def step(at: float, preempted: set[str] | None = None, **tokens: int) -> Step:
    return at, tokens, preempted


def finished(one: Tracked, at: float, blocks: int, output: int = 1) -> Finished:
    return Finished(at, one, "length", output, blocks)


def test_a_step_is_complete_when_the_next_was_scheduled() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 4))
    desk.give(Arrived(one), step(1.0, r=64))
    assert desk.produced == []
    desk.give(step(2.0, r=64))
    assert desk.produced == [(0, 2, "computed")]
    desk.give(step(3.0, r=1))
    assert desk.produced == [(0, 2, "computed"), (2, 2, "computed")]
    assert set(desk.lanes) == {BLOCKS}


def test_with_two_batches_in_flight_it_takes_two_later_steps() -> None:
    desk = Desk(delay=2)
    desk.give(Arrived(tracked("r", chain("a", 4))), step(1.0, r=64), step(2.0, r=64))
    assert desk.produced == []
    desk.give(step(3.0, r=1))
    assert desk.produced == [(0, 2, "computed")]


def test_what_was_local_is_not_produced_and_what_was_pulled_is_named() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 8))
    one.local_tokens, one.pulled_tokens = 2 * BLOCK, 3 * BLOCK
    desk.give(Arrived(one), step(1.0, r=3 * BLOCK), step(2.0, r=1))
    assert desk.produced == [(2, 3, "pulled"), (5, 3, "computed")]


def test_a_run_names_its_parent_and_tail() -> None:
    desk = Desk()
    hashes = chain("a", 6)
    desk.give(Arrived(tracked("r", hashes)), step(1.0, r=128), step(2.0, r=64), step(3.0, r=1))
    first, second = [e for e in desk.events if isinstance(e, Produced)]
    assert (first.parent, first.tail) == (b"", hashes[3])
    assert (second.parent, second.tail) == (hashes[3][:8], hashes[5])
    assert first.hashes == hashes[3][:8]


def test_generated_blocks_are_produced_too() -> None:
    desk = Desk()
    hashes = chain("a", 1)
    one = tracked("r", hashes, tokens=BLOCK)
    desk.give(Arrived(one), step(0.0, r=BLOCK))
    hashes += chain("a", 2, hashes)[1:]
    for at in range(1, BLOCK + 2):
        desk.give(step(float(at), r=1))
    assert desk.produced == [(0, 1, "computed"), (1, 1, "computed")]


def test_the_end_says_where_each_prompt_token_came_from() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 8), tokens=8 * BLOCK + 5, params={"id": "ext", "session": "s"})
    one.local_tokens, one.pulled_tokens = 2 * BLOCK, 4 * BLOCK
    one.source, one.pull_ms, one.miss = "d0", 12.5, "ignored"
    desk.give(Arrived(one), step(1.0, r=2 * BLOCK + 5), step(1.5, r=1), finished(one, 2.0, 8, 2))
    ended = desk.ended
    assert (ended.local_tokens, ended.pulled_tokens) == (2 * BLOCK, 4 * BLOCK)
    assert ended.local_tokens + ended.pulled_tokens + ended.computed_tokens == 8 * BLOCK + 5
    assert (ended.external_id, ended.session, ended.source) == ("ext", "s", "d0")
    assert (ended.miss, ended.pull_ms) == ("", 12.5)
    # The token is there when the step that computed it is known to be complete.
    assert ended.ttft_ms == 1500.0
    assert desk.lanes[-1] == FACTS


def test_a_miss_names_its_cause_and_no_source() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 2))
    one.miss, one.source = "void", "d0"
    desk.give(Arrived(one), step(1.0, r=64), finished(one, 2.0, 2))
    assert (desk.ended.miss, desk.ended.source) == ("void", "")


def test_a_request_of_one_step_is_produced_at_its_end() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 3))
    desk.give(Arrived(one), step(1.0, r=96), finished(one, 2.0, 3))
    assert desk.produced == [(0, 3, "computed")]


def test_a_preempted_request_is_known_again_at_its_end() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 4))
    desk.give(Arrived(one), step(1.0, r=64), step(2.0, {"r"}), step(3.0, r=64), step(4.0, r=64))
    assert desk.produced == []
    desk.give(finished(one, 5.0, 4))
    assert sum(count for _, count, _ in desk.produced) == 4


def test_an_aborted_request_that_never_ran_leaves_only_its_end() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 4))
    desk.give(Arrived(one), Finished(2.0, one, "aborted", 0, 0))
    assert desk.produced == []
    assert (desk.ended.outcome, desk.ended.ttft_ms, desk.ended.output_tokens) == ("aborted", 0.0, 0)


def test_offers_go_through_the_same_book() -> None:
    desk = Desk()
    hashes = chain("a", 4)
    desk.give(Offered("o", hashes, "r", ""), Reused([hashes[1]]), Cleared("cleared"))
    assert [type(e).__name__ for e in desk.events] == ["Retained", "Evicted", "Evicted"]
    assert isinstance(desk.events[0], Retained)


def test_a_step_of_unknown_requests_is_no_error() -> None:
    desk = Desk()
    desk.give(step(1.0, warm=8), step(2.0, warm=8))
    assert desk.events == []


def test_an_unknown_item_is_an_error() -> None:
    with pytest.raises(TypeError, match="unknown item: int"):
        Book(BLOCK, delay=1).translate(3)


def test_prefill_is_timed_from_its_first_step_and_not_from_the_wait_before() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 4), tokens=130)
    one.arrived = 1.0
    desk.give(Arrived(one), step(5.0, other=9), step(6.0, r=64), step(6.5, r=66), step(7.0, r=1))
    desk.give(finished(one, at=9.0, blocks=4))
    assert (desk.ended.ttft_ms, desk.ended.prefill_ms) == (6_000.0, 1_000.0)


def test_prefill_is_timed_where_no_later_step_came() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 4), tokens=130)
    desk.give(Arrived(one), step(6.0, r=130), finished(one, at=6.25, blocks=4))
    assert desk.ended.prefill_ms == 250.0


def test_a_prefill_that_was_broken_off_has_no_time() -> None:
    desk = Desk()
    one = tracked("r", chain("a", 4), tokens=130)
    desk.give(Arrived(one), step(1.0, r=64), step(2.0, preempted={"r"}), step(3.0, r=130))
    desk.give(step(4.0, r=1), finished(one, at=9.0, blocks=4))
    assert desk.ended.prefill_ms == 0.0
