"""One load for all on a node who need the same blocks, whatever becomes of the first."""

from __future__ import annotations

import pytest
from tests.unit.connector.pull_desk import HASHES, Desk, hint, with_hint
from tests.unit.connector.support import BLOCK, arrived, failed

from kvferry_connectors.vllm.loading import FAILURES_MAX, Loads
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked


def three(desk: Desk) -> list[Tracked]:
    """Requests of one prompt, of which the first loads it."""
    made = [desk.begin(with_hint(hint())) for _ in range(3)]
    for name, one in zip("abc", made, strict=True):
        one.id = name
        desk.found(one, 8).incarnation = "i"
    desk.pulls.commit(made[0], 0, list(range(8)))
    return made


def test_siblings_wait_for_the_load_of_the_block_they_need() -> None:
    desk = Desk()
    first, sibling, other = three(desk)
    assert desk.pulls.answer(sibling, 0) is None
    assert desk.pulls.answer(other, 4 * BLOCK) == 4 * BLOCK  # It needs other blocks.
    desk.pulls.end(first, arrived(8))
    assert desk.pulls.answer(sibling, 8 * BLOCK) == 0
    assert sibling.miss == "local"


def test_who_needs_more_than_the_first_brought_loads_only_the_rest() -> None:
    desk = Desk()
    first, longer, _ = three(desk)
    assert desk.pulls.answer(longer, 0) is None
    desk.pulls.end(first, arrived(5))
    assert desk.pulls.answer(longer, 5 * BLOCK) == 3 * BLOCK


def test_aborting_the_first_does_not_abort_the_need_of_the_others() -> None:
    desk = Desk()
    first, sibling, third = three(desk)
    desk.pulls.end(first, failed("aborted"))
    assert desk.pulls.answer(sibling, 0) == 8 * BLOCK
    desk.pulls.commit(sibling, 0, list(range(8)))
    assert desk.pulls.answer(third, 0) is None, "again one load for all"


@pytest.mark.parametrize("reason", ["void", "deadline", "unreachable", "refused"])
def test_where_the_first_failed_the_others_do_not_fail_one_after_the_other(reason: str) -> None:
    desk = Desk()
    first, sibling, third = three(desk)
    assert desk.pulls.answer(sibling, 0) is None
    desk.pulls.end(first, failed(reason))
    for one in (sibling, third):
        assert desk.pulls.answer(one, 0) == 0
        assert one.miss == "transfer_failed"
    assert desk.looker.aborted == ["transfer_failed"] * 2, "their pins are given back"


def test_a_request_that_came_after_the_failure_or_has_another_source_may_try() -> None:
    desk = Desk()
    first, elsewhere, _ = three(desk)
    assert elsewhere.pull is not None
    elsewhere.pull.incarnation = "another"
    desk.pulls.end(first, failed("void"))
    assert desk.pulls.answer(elsewhere, 0) == 8 * BLOCK
    later = desk.begin(with_hint(hint()))
    later.id = "d"
    desk.found(later, 8).incarnation = "i"
    assert desk.pulls.answer(later, 0) == 8 * BLOCK


def test_remembered_failures_are_bounded() -> None:
    loads = Loads()
    for number in range(3 * FAILURES_MAX):
        one = with_hint(hint())
        one.hashes = [number.to_bytes(32, "big"), *HASHES]
        pull = Pull(f"t{number}", 0.0, 0.0)
        pull.incarnation, pull.state = "i", PullState.LOADING
        loads.begin(one, pull)
        loads.end(one, pull, failed("void"))
    assert len(loads) == 0
    assert len(loads._failed) == FAILURES_MAX
