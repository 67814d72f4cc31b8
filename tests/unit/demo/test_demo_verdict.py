"""When the demo says that all is well, and when it must not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvferry_connectors.demo.figures import (
    CaseFigures,
    Figures,
    LedgerFigures,
    Reconciled,
    TurnFigures,
)
from kvferry_connectors.demo.report import print_figures
from kvferry_connectors.demo.settings import DemoSettings

SOURCES = {"local_compute": 10, "local_cache_hit": 0, "external_kv_transfer": 90}


def turn(number: int, pulled: int) -> TurnFigures:
    return TurnFigures(
        conversation="A",
        turn=number,
        prompt_tokens=1_000,
        local_tokens=0,
        computed_tokens=1_000 - pulled,
        pulled_d_to_p=pulled,
        pulled_p_to_d=200,
        ttft_ms=123.456,
        ttft_off_ms=456.789,
        computed_off_tokens=1_000,
        source="d0" if pulled else "",
        found_by="plan" if pulled else "",
        streamed=True,
        request="kvf-1",
    )


def case(ok: bool) -> CaseFigures:
    return CaseFigures(
        case="edited history",
        prompt_tokens=1_000,
        local_tokens=0,
        computed_tokens=100,
        pulled_d_to_p=900,
        pulled_p_to_d=0,
        miss="",
        line="pulled=900 from=d0 3ms",
        found_by="plan",
        ttft_ms=50.0,
        request="kvf-2",
        expected="900 tokens pulled",
        ok=ok,
    )


def ledger(**changes: Any) -> LedgerFigures:
    good = LedgerFigures(
        events={"produced": 3, "retained": 2, "evicted": 1, "requested": 2, "transferred": 1},
        missing_events=(),
        quarantined=0,
        gaps=0,
        unsettled_transfers=0,
        unbalanced_requests=0,
        engines=(Reconciled("p0", "ab" * 8, dict(SOURCES), dict(SOURCES)),),
        live_digest="d" * 64,
        replay_digest="d" * 64,
        position=7,
    )
    return dataclasses.replace(good, **changes)


def good() -> Figures:
    return Figures(
        turns=[turn(1, 0), turn(2, 900)], cases=[case(True)], compared=3, ledger=ledger()
    )


def test_all_is_well() -> None:
    figures = good()
    assert figures.problems() == []
    assert figures.outputs_equal


def other_engine() -> LedgerFigures:
    wrong = Reconciled("d0", "cd" * 8, dict(SOURCES), {**SOURCES, "local_compute": 11})
    return ledger(engines=(wrong,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"different": ["A2"]}, "A2: not the reference"),
        ({"compared": 0}, "no answer was compared"),
        ({"turns": [turn(1, 0), turn(2, 0)]}, "turn 2: P pulled nothing"),
        (
            {"turns": [dataclasses.replace(turn(2, 900), local_tokens=64)]},
            "P's own cache still held 64",
        ),
        (
            {"turns": [dataclasses.replace(turn(2, 900), computed_off_tokens=100)]},
            "with reuse off: P computed 100 tokens of 1000",
        ),
        ({"cases": [case(False)]}, "expected 900 tokens pulled, saw pulled=900"),
        ({"ledger": None}, "ledger was not checked"),
        ({"ledger": ledger(missing_events=("evicted",))}, "no evicted event"),
        ({"ledger": ledger(quarantined=1)}, "cannot be decoded"),
        ({"ledger": ledger(gaps=4)}, "4 events were lost"),
        ({"ledger": ledger(unsettled_transfers=1)}, "no single outcome"),
        ({"ledger": ledger(unbalanced_requests=1)}, "do not add up"),
        ({"ledger": ledger(replay_digest="e" * 64)}, "replay in another process"),
        ({"ledger": other_engine()}, "vLLM counts"),
    ],
)
def test_each_thing_that_is_wrong_is_said(change: dict[str, Any], words: str) -> None:
    figures = dataclasses.replace(good(), **change)
    problems = figures.problems()
    assert len(problems) == 1
    assert words in problems[0]
    assert figures.document()["problems"] == problems


def test_the_document_has_the_promised_keys() -> None:
    document = json.loads(json.dumps(good().document()))
    assert document["outputs_equal"] is True
    assert {
        "conversation",
        "turn",
        "prompt_tokens",
        "computed_tokens",
        "pulled_d_to_p",
        "pulled_p_to_d",
        "ttft_ms",
        "ttft_off_ms",
    } <= document["turns"][1].keys()
    assert document["turns"][1]["ttft_ms"] == 123.5
    assert document["cases"][0]["ok"] is True
    assert document["ledger"]["replay_equal"] is True
    assert document["ledger"]["engines"][0]["equal"] is True


def test_the_tables_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    figures = good()
    long = dataclasses.replace(turn(3, 99_000), prompt_tokens=100_000, computed_off_tokens=100_000)
    figures.turns.append(long)
    figures.explained = "[not markup] " + "x" * 100
    console = Console(width=80, record=True, file=(tmp_path / "out").open("w"))
    print_figures(console, figures, DemoSettings(folder=tmp_path, cache=tmp_path))
    text = console.export_text()
    assert "…" not in text
    assert "[not markup]" in text
    assert "99,000" in text
    assert "All as it must be" in text
