"""Whether and from where a request's prefix is fetched: the engine thread's side."""

from __future__ import annotations

import time

import pytest
from tests.unit.connector.pull_desk import HASHES, Desk, hint, with_hint
from tests.unit.connector.support import BLOCK, failed, tracked

from kvferry.core.events import FACTS, Requested, TransferFailed


def test_requests_that_must_not_pull_are_told_why() -> None:
    desk = Desk()
    cases = {
        "paused": desk.begin(tracked("a", HASHES), "paused"),
        "reuse_off": desk.begin(tracked("b", HASHES, params={"reuse": "off"})),
        "unshareable": desk.begin(tracked("c", HASHES, shareable=False)),
        "too_short": desk.begin(tracked("d", [], tokens=20)),
    }
    for miss, one in cases.items():
        assert (one.miss, one.pull) == (miss, None)
        assert desk.pulls.answer(one, 0) == 0
    assert (desk.looker.hints, desk.looker.planned, desk.outbox.reserved) == ([], [], 0)


def test_without_a_coordinator_and_a_hint_nothing_waits() -> None:
    desk = Desk()
    desk.looker.plans = False
    assert desk.begin(tracked("r", HASHES)).miss == "no_coordinator"


def test_what_is_held_nowhere_needs_no_plan() -> None:
    desk = Desk()
    desk.looker.spares = "nothing_held"
    one = desk.begin(tracked("r", HASHES))
    assert (one.pull, desk.looker.planned, desk.outbox.reserved) == (None, [], 0)
    assert desk.pulls.answer(one, 0) == 0
    desk.pulls.announce(one)
    (event,) = desk.facts()
    assert (event.miss, event.basis, event.transfer) == ("nothing_held", "told", "")


def test_a_plan_that_could_add_nothing_to_what_is_local_is_not_waited_for() -> None:
    desk = Desk()
    one = desk.begin(tracked("r", HASHES))
    assert desk.pulls.answer(one, 0) is None
    desk.looker.spares = "local"
    assert desk.pulls.answer(one, 4 * BLOCK) == 0
    assert (one.miss, desk.looker.freed, desk.outbox.reserved) == ("local", 1, 1)


def test_a_hint_counts_more_than_what_is_told() -> None:
    desk = Desk()
    desk.looker.spares = "nothing_held"
    one = desk.begin(with_hint(hint()))
    assert desk.pulls.answer(one, 0) is None
    desk.found(one, 6)
    assert desk.pulls.answer(one, 0) == 6 * BLOCK


def test_a_full_outbox_begins_no_transfer() -> None:
    desk = Desk()
    while desk.outbox.reserve():
        pass
    assert desk.begin(with_hint(hint())).miss == "outbox_full"
    assert desk.looker.hints == []


def test_the_answer_is_none_until_it_is_known_or_late() -> None:
    desk = Desk(pin_timeout_ms=60_000)
    one = desk.begin(with_hint(hint()))
    assert desk.pulls.answer(one, 0) is None
    desk.found(one, 6)
    assert desk.pulls.answer(one, 0) == 6 * BLOCK
    assert desk.pulls.answer(one, 2 * BLOCK) == 4 * BLOCK
    assert desk.pulls.answer(one, 2 * BLOCK) == 4 * BLOCK  # It may be asked any number of times.


def test_a_late_plan_ends_the_wait() -> None:
    desk = Desk()
    one = desk.begin(tracked("r", HASHES))
    assert one.pull is not None
    one.pull.answer_by = time.monotonic()
    assert desk.pulls.answer(one, 0) == 0
    assert (one.miss, desk.looker.freed) == ("plan_late", 1)
    assert one.pull.cancelled
    assert desk.pulls.answer(one, 0) == 0


def test_a_grant_that_arrives_after_we_gave_up_changes_nothing() -> None:
    desk = Desk()
    one = desk.begin(tracked("r", HASHES))
    assert one.pull is not None
    one.pull.answer_by = time.monotonic()
    assert desk.pulls.answer(one, 0) == 0
    desk.found(one, 8)
    assert desk.pulls.answer(one, 0) == 0
    desk.pulls.drop(one, "unused")
    assert (one.miss, desk.looker.freed) == ("plan_late", 1)


@pytest.mark.parametrize(
    ("granted", "local", "miss"),
    [(8, 8, "local"), (3, 3, "local"), (2, 5, "local"), (0, 0, "too_short")],
)
def test_a_grant_that_adds_no_block_is_given_back(granted: int, local: int, miss: str) -> None:
    desk = Desk()
    one = desk.begin(with_hint(hint()))
    desk.found(one, granted)
    assert desk.pulls.answer(one, local * BLOCK) == 0
    assert (one.miss, desk.looker.aborted, desk.looker.freed) == (miss, [miss], 1)


def test_fewer_tokens_than_configured_are_not_pulled() -> None:
    desk = Desk(min_pull_tokens=3 * BLOCK)
    one = desk.begin(with_hint(hint()))
    desk.found(one, 2)
    assert desk.pulls.answer(one, 0) == 0
    assert one.miss == "too_short"


def test_the_answer_never_goes_beyond_the_prompt() -> None:
    desk = Desk()
    one = desk.begin(with_hint(hint()))
    desk.found(one, 50)
    assert desk.pulls.answer(one, 0) == 8 * BLOCK


def test_a_load_carries_exactly_the_blocks_it_fills() -> None:
    desk = Desk(transfer_timeout_ms=1234)
    one = desk.begin(with_hint(hint()))
    desk.found(one, 7)
    job = desk.pulls.commit(one, 2, [11, 12, 13, 14, 15])
    assert (job.transfer, job.start, job.target_blocks) == ("life.1", 2, (11, 12, 13, 14, 15))
    assert job.hashes == tuple(HASHES[2:7])
    assert job.deadline_ms == 1234
    assert desk.pulls.by_transfer("life.1") is one
    assert desk.pulls.open_count() == 1
    desk.pulls.end(one, failed("aborted"))
    assert desk.pulls.by_transfer("life.1") is None
    assert desk.pulls.answer(one, 0) == 0


def test_a_pull_is_dropped_once_and_not_while_it_loads() -> None:
    desk = Desk()
    one = desk.begin(with_hint(hint()))
    desk.found(one, 8)
    desk.pulls.drop(one, "unused")
    desk.pulls.drop(one, "aborted")
    assert (one.miss, desk.looker.aborted, desk.looker.freed) == ("unused", ["unused"], 1)
    two = desk.begin(with_hint(hint()))
    desk.found(two, 8)
    desk.pulls.commit(two, 0, list(range(8)))
    desk.pulls.drop(two, "aborted")
    assert desk.looker.aborted == ["unused"]
    desk.pulls.drop(tracked("q", HASHES), "aborted")  # It never had one.


def test_a_request_is_announced_once_with_its_plan_or_its_miss() -> None:
    desk = Desk()
    one = desk.begin(with_hint(hint()))
    pull = desk.found(one, 7)
    pull.basis, pull.predicted_ms, pull.options = "plan", 3.5, ("d0", "d1")
    desk.pulls.commit(one, 0, list(range(7)))
    desk.pulls.announce(one)
    desk.pulls.announce(one, ended=True)
    two = desk.begin(tracked("q", [], tokens=20))
    desk.pulls.announce(two)
    first, second = desk.facts()
    assert isinstance(first, Requested)
    assert (first.transfer, first.source, first.granted, first.wanted) == ("life.1", "d0", 7, 8)
    assert (first.basis, first.predicted_ms, first.options) == ("plan", 3.5, ("d0", "d1"))
    assert (first.miss, second.miss, second.transfer) == ("", "too_short", "")


def test_an_outcome_finds_room_in_a_full_outbox() -> None:
    desk = Desk()
    desk.begin(with_hint(hint()))
    for _ in range(50):
        desk.outbox.facts(Requested(request="other"))
    failed = TransferFailed(transfer="life.1", request="r", source="d0", stage="pin", reason="void")
    desk.outbox.settle(failed)
    assert failed in desk.facts()
    assert desk.outbox.counts(FACTS).dropped > 0


def test_pins_of_waiting_requests_are_kept() -> None:
    desk = Desk(pin_ms=3000)
    one = desk.begin(with_hint(hint()))
    pull = desk.found(one, 8)
    desk.pulls.renew_waiting([one], 100.0)
    assert desk.looker.renewed == []  # Only proved so far: there is no pin yet.
    pull.pinned_at = 99.5
    desk.pulls.renew_waiting([one], 100.0)
    assert desk.looker.renewed == []
    desk.pulls.renew_waiting([one], 101.0)
    desk.pulls.renew_waiting([one], 101.5)
    assert desk.looker.renewed == ["life.1"]
    desk.pulls.commit(one, 0, list(range(8)))
    desk.pulls.renew_waiting([one], 200.0)
    assert desk.looker.renewed == ["life.1"]
