"""A hint may come from anybody: only a genuine one of our space is used."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.connector.pull_desk import Desk, hint, with_hint


def test_a_genuine_hint_is_used() -> None:
    desk = Desk()
    desk.begin(with_hint(hint()))
    assert [h.node for h in desk.looker.hints] == ["d0"]
    assert desk.outbox.reserved == 1


FORGED = hint() | {"address": "127.0.0.1:10"}
LONGER = hint() | {"blocks": 9}
OTHER_KEY = hint(key=b"x" * 32)
OTHER_SPACE = hint(space="tiny-ffffffffffff")
OLD = hint(expires_ms=1)
GARBAGE = [0, "x", [], {}, [hint()], hint() | {"v": 2}, hint() | {"blocks": "8"}, {"mac": None}]


@pytest.mark.parametrize(
    ("raw", "miss"),
    [
        (FORGED, "bad_hint"),
        (LONGER, "bad_hint"),
        (OTHER_KEY, "bad_hint"),
        (OTHER_SPACE, "space_mismatch"),
        (OLD, "expired_hint"),
        *((raw, "bad_hint") for raw in GARBAGE),
    ],
)
def test_what_is_no_hint_of_ours_is_ignored_and_the_miss_says_why(raw: Any, miss: str) -> None:
    desk = Desk()
    one = desk.begin(with_hint(raw))
    assert desk.looker.hints == []
    assert [pull.address for pull in desk.looker.planned] == [""]
    assert one.pull is not None
    assert one.pull.miss == miss
    desk.looker.plans = False
    assert desk.begin(with_hint(raw)).miss == miss


def test_our_own_hint_is_left_to_the_local_cache() -> None:
    desk = Desk()
    desk.begin(with_hint(hint(node="p0")))
    assert desk.looker.hints == []
    assert len(desk.looker.planned) == 1


def test_a_hint_that_is_thought_too_dear_is_left_to_a_plan() -> None:
    desk = Desk()
    desk.looker.dear = True
    desk.begin(with_hint(hint()))
    assert (len(desk.looker.planned), desk.looker.hints) == (1, [])
    desk.looker.dear = False
    desk.begin(with_hint(hint()))
    assert (len(desk.looker.planned), len(desk.looker.hints)) == (1, 1)
