"""A short piece of the long run (``make chaos``): conversations go on while the world fails.

The cut needs network namespaces; where they are not permitted the other fault still comes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.conversations import Conversations
from tests.chaos.faults import cut_engine, faults, kill_leader
from tests.chaos.long import endure, settle, world
from tests.e2e.engine import EngineProcess

pytestmark = pytest.mark.engine

LIGHT = (kill_leader, cut_engine)


def test_answers_stay_right_and_the_books_balance(
    model: Path, reference: EngineProcess, tmp_path: Path
) -> None:
    with world(tmp_path, model, 1) as made:
        talks = Conversations(made.fleet, reference, 5)
        talks.round()
        known = faults(made)
        for strike in LIGHT:
            for fault in [one for one in known if one.strike is strike][:1]:
                endure(made, talks, fault)
        found = settle(made)
    assert talks.counts["pulled"] > 0
    assert found["leaders"] >= 2
