"""Both transition tables over their full products."""

from __future__ import annotations

import itertools

import pytest

from kvferry.core.transfer import (
    FAILURES,
    PIN_ENDS,
    PIN_HOW,
    PIN_PHASES,
    PIN_TABLE,
    TRANSFER_PHASES,
    TRANSFER_TABLE,
    Table,
    allowed_events,
    step,
)
from kvferry.errors import IllegalTransition

TABLES = {
    "transfer": (TRANSFER_TABLE, TRANSFER_PHASES, "planned"),
    "pin": (PIN_TABLE, PIN_PHASES, "unknown"),
}
PAIRS = [
    (name, phase, event)
    for name, (table, phases, _) in TABLES.items()
    for phase, event in itertools.product(phases, sorted({event for _, event in table}))
]


class Thing:
    """Something whose phase follows a table."""

    def __init__(self, table: Table, phase: str) -> None:
        self.table = table
        self.phase = phase

    def take(self, event: str) -> None:
        self.phase = step(self.table, self.phase, event)


@pytest.mark.parametrize(("name", "phase", "event"), PAIRS)
def test_every_pair_moves_or_raises_and_leaves_the_phase(name: str, phase: str, event: str) -> None:
    table, phases, _ = TABLES[name]
    thing = Thing(table, phase)
    if (phase, event) in table:
        thing.take(event)
        assert thing.phase in phases
        return
    with pytest.raises(IllegalTransition) as caught:
        thing.take(event)
    assert thing.phase == phase
    assert repr(phase) in str(caught.value)
    assert repr(event) in str(caught.value)
    for other in allowed_events(table, phase):
        assert other in str(caught.value)


@pytest.mark.parametrize("name", TABLES)
def test_every_phase_is_reachable(name: str) -> None:
    table, phases, first = TABLES[name]
    reached = {first}
    while more := {to for (at, _), to in table.items() if at in reached} - reached:
        reached |= more
    assert reached == set(phases)


def test_an_unknown_phase_or_event_is_illegal() -> None:
    with pytest.raises(IllegalTransition, match="it has ended"):
        step(TRANSFER_TABLE, "transferred", "pin")
    with pytest.raises(IllegalTransition, match="allowed: "):
        step(PIN_TABLE, "pinned", "explode")


def test_a_transfer_ends_well_only_through_intact() -> None:
    ways = [pair for pair, to in TRANSFER_TABLE.items() if to == "transferred"]
    assert ways == [("settling", "intact")]
    assert not [pair for pair in TRANSFER_TABLE if pair[0] in ("transferred", "failed")]


def test_every_open_phase_can_fail_by_deadline_abort_and_loss() -> None:
    for phase in ("planned", "pinning", "pinned", "reading", "settling"):
        for event in ("deadline", "aborted", "node_left"):
            assert step(TRANSFER_TABLE, phase, event) == "failed"
    failing = {event for (_, event), to in TRANSFER_TABLE.items() if to == "failed"}
    assert failing == set(FAILURES)


def test_an_ended_pin_answers_repeats_and_never_holds_again() -> None:
    for end in (*PIN_ENDS, "tombstone"):
        for message in ("pin", "renew", "done", "abort"):
            assert step(PIN_TABLE, end, message) == end
    assert set(PIN_HOW) == {*PIN_ENDS, "refused"}


def test_done_or_abort_before_the_pin_leaves_a_tombstone() -> None:
    for message in ("done", "abort"):
        phase = step(PIN_TABLE, "unknown", message)
        assert step(PIN_TABLE, phase, "pin") == "tombstone"
