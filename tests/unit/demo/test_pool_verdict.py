"""When the demo of TileRT says that all is well, and when it must not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.figures import LedgerFigures
from kvferry_connectors.demo.tilert.figures import PoolCase, PoolFigures, PoolTurn
from kvferry_connectors.demo.tilert.report import print_pool
from kvferry_connectors.demo.tilert.run import check_tilert
from kvferry_connectors.demo.tilert.settings import TOKEN_BYTES


def turn(number: int, **changed: Any) -> PoolTurn:
    history = 96 if number > 1 else 0
    made = PoolTurn(
        conversation="A",
        turn=number,
        streamed=True,
        prompt_tokens=200,
        local_tokens=0,
        computed_tokens=200 - history,
        pulled_tokens=history,
        source="t0" if history else "",
        found_by="plan" if history else "",
        node="t0",
        slot_generation=number,
        slot_waited_ms=0.0,
        slot=("granted", "confirmed", "replied"),
        admission=3,
        sent_bytes=200 * TOKEN_BYTES,
        send_ms=12.34,
        send_failed="",
        answer_tokens=24,
        returned_blocks=13,
        not_returned="",
        history_tokens=history,
        ttft_ms=40.0,
        total_ms=60.0,
        request="kvf-1",
    )
    return dataclasses.replace(made, **changed)


def ledger() -> LedgerFigures:
    return LedgerFigures(
        events={"send_began": 2, "send_ended": 2},
        missing_events=(),
        quarantined=0,
        gaps=0,
        unsettled_transfers=0,
        unbalanced_requests=0,
        engines=(),
        live_digest="d",
        replay_digest="d",
        position=9,
    )


def figures(**changed: Any) -> PoolFigures:
    made = PoolFigures(
        turns=[turn(1), turn(2)],
        cases=[PoolCase("a full pool", "429", "429", True)],
        compared=1,
        ledger=ledger(),
    )
    return dataclasses.replace(made, **changed)


def test_all_is_well_and_it_says_what_the_stub_is() -> None:
    found = figures()
    assert found.problems() == []
    document = json.loads(json.dumps(found.document()))
    assert document["outputs_equal"] is True
    assert "are not a model's" in document["stub"]
    assert document["turns"][1]["pulled_tokens"] == 96
    assert document["turns"][1]["send_ms"] == 12.3
    console = Console(width=120, record=True, quiet=False)
    with console.capture() as shown:
        print_pool(console, found)
    told = " ".join(shown.get().split())
    assert "All as it must be" in told
    assert "are not a model's" in told


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"slot": ("granted", "confirmed", "abandoned")}, "its lease went"),
        ({"sent_bytes": 1}, "was not sent: 1 bytes"),
        ({"send_failed": "busy"}, "was not sent: busy"),
        ({"returned_blocks": 0, "not_returned": "no_room"}, "t0 kept nothing (no_room)"),
        ({"pulled_tokens": 80}, "P pulled 80 tokens from t0"),
        ({"source": "d0"}, "from d0"),
    ],
)
def test_a_turn_that_went_wrong_is_named(changed: dict[str, Any], problem: str) -> None:
    (found,) = figures(turns=[turn(1), turn(2, **changed)]).problems()
    assert problem in found
    assert "conversation A, turn 2" in found


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"compared": 0}, "no first token was compared"),
        ({"different": ["A1"]}, "A1: the first token is not d0's"),
        ({"violations": ["send i.s1 has no outcome"]}, "kvferry audit: send i.s1"),
        ({"ledger": None}, "the ledger was not checked"),
        ({"cases": [PoolCase("drained", "t0", "t1", False)]}, "drained: expected t1, saw t0"),
    ],
)
def test_whatever_else_went_wrong_is_named(changed: dict[str, Any], problem: str) -> None:
    found = figures(**changed)
    (text,) = found.problems()
    assert problem in text
    console = Console(width=120)
    with console.capture() as shown:
        print_pool(console, found)
    assert "All as it must be" not in shown.get()


def test_without_the_wheel_the_cure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_TILERT", str(tmp_path))
    with pytest.raises(DemoError, match="make setup-engine"):
        check_tilert()
    (tmp_path / "tilert" / "pd_vllm").mkdir(parents=True)
    with pytest.raises(DemoError, match="needs scipy, nixl"):
        check_tilert()
