"""What plans say becomes what the ledger is told."""

from __future__ import annotations

import pytest
from tests.unit.connector.support import chain, loading, tracked

from kvferry.core.cost import MODEL
from kvferry.core.messages import Candidate, PlanAnswer
from kvferry_connectors.vllm.requesting import requested
from kvferry_connectors.vllm.taking import take_plan, take_reason
from kvferry_connectors.vllm.tracked import Pull

HASHES = chain("a", 8)
NUMBERS = Candidate(
    node="d0",
    address="a:1",
    incarnation="i",
    blocks=8,
    predicted_ms=3.0,
    recompute_ms=2.0,
    queue_ms=1.0,
    doubt=0.1,
)


def test_what_was_too_dear_is_recorded_with_its_numbers() -> None:
    one = tracked("r", HASHES)
    one.pull, one.miss = Pull("t", 0.0, 0.0), "too_dear"
    take_reason(one.pull, PlanAnswer(replica="c", dear=(NUMBERS,), prefill_ms=5.0))
    event = requested(one, lambda tracked: tracked.miss, 4)
    assert (event.transfer, event.miss, event.source, event.upto) == ("", "too_dear", "d0", b"")
    assert (event.predicted_ms, event.recompute_ms, event.prefill_ms) == (3.0, 2.0, 5.0)
    assert event.model == MODEL


@pytest.mark.parametrize(("granted", "last"), [(3, 0), (4, 4), (7, 4), (8, 8)])
def test_a_transfer_names_the_last_sampled_block_that_it_moves(granted: int, last: int) -> None:
    one = tracked("r", HASHES)
    pull = loading(one)
    take_plan(pull, PlanAnswer(replica="c", prefill_ms=5.0), (NUMBERS,))
    pull.granted = granted
    event = requested(one, lambda tracked: "none", 4)
    assert event.upto == (HASHES[last - 1][:8] if last else b"")
    assert (event.position, event.waited_ms) == (0, 0.0)
    assert (event.queue_ms, event.doubt, event.miss) == (1.0, 0.1, "")


def test_a_decision_is_recorded_with_what_was_known_and_how_long_it_had_waited() -> None:
    one = tracked("r", HASHES)
    one.position, one.waited_ms = 71, 12.0
    spared = requested(one, lambda tracked: "nothing_held", 4)
    loading(one)
    planned = requested(one, lambda tracked: "none", 4)
    assert (spared.position, spared.waited_ms) == (71, 0.0)
    assert (planned.position, planned.waited_ms) == (71, 12.0)
    assert spared.tail == planned.tail == HASHES[7][:8], "8 blocks of which each 4th is sampled"
    assert requested(one, lambda tracked: "none", 16).tail == b""


def test_without_a_plan_there_are_no_predictions() -> None:
    one = tracked("r", HASHES)
    loading(one)
    assert requested(one, lambda tracked: "none", 4).model == 0
