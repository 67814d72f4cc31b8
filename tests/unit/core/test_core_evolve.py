"""Evolve by itself, as replays and simulators use it: one event in its place."""

from __future__ import annotations

import pytest
from tests.unit.core.support import SPACE, joined, retained, started

from kvferry.core.applied import Applied
from kvferry.core.digest import digest
from kvferry.core.envelope import Entry, Position
from kvferry.core.events import AnyEvent, LeaderElected, RequestEnded
from kvferry.core.evolve import evolve
from kvferry.core.state import State


def placed(
    event: AnyEvent,
    *,
    node: str = "p0",
    incarnation: str = "p0-a",
    epoch: int = 1,
    lane: str = "facts",
) -> Applied:
    entry = Entry(event=event)
    return Applied(SPACE, node, incarnation, epoch, lane, 2, entry, Position(9, 90))


def test_an_event_changes_the_state_and_names_the_offers() -> None:
    state = State()
    evolve(state, placed(joined("p0-a", 1)))
    kept = placed(retained("o"))
    evolve(state, kept)
    assert kept.offers == ("o",)
    assert state.spaces[SPACE].offers["o"].stored_ms == 90


@pytest.mark.parametrize(
    "applied",
    [
        placed(retained("o"), node="nobody"),
        placed(retained("o"), incarnation="p0-b"),
        placed(retained("o"), epoch=2),
        placed(retained("o"), epoch=0),
        placed(retained("o"), lane="blocks"),
        placed(LeaderElected(term=1, replica="c-2"), node="c-2", lane="coord"),
    ],
    ids=["unknown", "incarnation", "later", "earlier", "blocks", "term"],
)
def test_a_void_event_changes_nothing(applied: Applied) -> None:
    ledger, _ = started("p0")
    before = digest(ledger.state)
    evolve(ledger.state, applied)
    assert digest(ledger.state) == before
    assert applied.offers == ()


def test_requests_count_once_each() -> None:
    state = State()
    evolve(state, placed(joined("p0-a", 1)))
    for name in ("a", "b"):
        evolve(state, placed(RequestEnded(request=name, prompt_tokens=1, computed_tokens=1)))
    assert state.spaces[SPACE].totals.requests == 2
    assert state.spaces[SPACE].totals.events == {"node_joined": 1, "request_ended": 2}
