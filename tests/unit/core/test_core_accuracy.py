"""Predictions joined with what came of them."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.core.support import requested, started
from tests.unit.core.test_core_transfers import done

from kvferry.core.accuracy import MOVE, PREFILL, accuracy, of_transfers, outcomes
from kvferry.core.events import AnyEvent, Requested, RequestEnded


def story(*took_ms: float, predicted_ms: float = 10.0) -> list[tuple[str, AnyEvent]]:
    events: list[tuple[str, AnyEvent]] = []
    for number, took in enumerate(took_ms):
        asked = msgspec.structs.replace(
            requested(f"t{number}"), predicted_ms=predicted_ms, recompute_ms=99.0, model=2
        )
        events += [("p0", asked), ("p0", done(f"t{number}", read_ms=took))]
    return events


def test_moves_are_compared_by_link() -> None:
    (one,) = accuracy(outcomes(story(10.0, 11.0, 12.0, 12.0, 30.0)))
    assert (one.what, one.key, one.n) == (MOVE, "d0>p0/tcp", 5)
    assert one.bias == pytest.approx(0.2)
    assert one.p50 == pytest.approx(0.2)
    assert one.p95 == pytest.approx(2.0)


def test_without_a_prediction_there_is_nothing_to_compare() -> None:
    assert outcomes(story(10.0, predicted_ms=0.0)) == []
    assert accuracy([]) == []


def test_a_move_of_a_part_is_not_compared() -> None:
    ((_, asked), ended) = story(5.0)
    assert isinstance(asked, Requested)
    for part in (
        msgspec.structs.replace(asked, local_tokens=32),
        msgspec.structs.replace(asked, granted=11),
    ):
        assert outcomes([("p0", part), ended]) == []
    assert len(outcomes([("p0", asked), ended])) == 1


def test_prefills_are_compared_by_node_where_nothing_was_pulled() -> None:
    def prefill(**more: object) -> list[tuple[str, AnyEvent]]:
        ended = RequestEnded(request="r", computed_tokens=900, prefill_ms=150.0)
        return [
            ("p0", Requested(request="r", miss="nothing_held", prefill_ms=100.0)),
            ("p0", msgspec.structs.replace(ended, **more)),
        ]

    (one,) = accuracy(outcomes(prefill()))
    assert (one.what, one.key, one.bias) == (PREFILL, "p0", pytest.approx(0.5))
    assert outcomes(prefill(pulled_tokens=160)) == []
    assert outcomes(prefill(prefill_ms=0.0)) == []


def test_a_state_tells_the_same_of_the_transfers_that_it_remembers() -> None:
    ledger, (p0, _) = started("p0", "d0")
    events = story(10.0, 15.0, 12.0)
    for _, event in events:
        p0.write(event)
    p0.write(requested("open"))
    assert accuracy(of_transfers(ledger.space.transfers.values())) == accuracy(outcomes(events))
