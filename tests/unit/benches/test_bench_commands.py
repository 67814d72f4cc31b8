"""`kvferry bench`'s own commands: their help, their documents, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli import running
from typer.testing import CliRunner

from kvferry.bench import COMMANDS
from kvferry.cli.main import app

runner = CliRunner()


def measured(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run a benchmark with a JSON file; its document."""
    file = tmp_path / "figures.json"
    result = runner.invoke(app, ["bench", *arguments, "--json", str(file)])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(file.read_text())
    assert document["circumstances"]["cores"] >= 1
    return document


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_every_option_says_what_it_is_for(name: str) -> None:
    command = running.command("bench", name)
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name}: {parameter.name} has no help"
    assert "Example" in command.help
    assert f"kvferry bench {name}" in command.help
    result = runner.invoke(app, ["bench", name, "--help"])
    assert result.exit_code == 0, result.output


def test_rebuild_comes_to_one_state_by_both_ways(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    figures = measured(
        tmp_path, "rebuild", "--events", "20000", "--runs", "1", "--store", str(store)
    )
    assert figures["block_events"] >= 20_000
    assert figures["facts"] > figures["messages"] > 0
    assert 0 < figures["held_blocks"] <= figures["block_events"]
    assert figures["replay_s"] > 0
    assert figures["snapshot_s"] > 0
    assert list(store.iterdir()) == [], "the ledger is gone"


def test_outbox_takes_part_of_a_step_only(tmp_path: Path) -> None:
    figures = measured(tmp_path, "outbox", "--steps", "50", "--pause-ms", "0")
    assert 0 < figures["step_us_p50"] <= figures["step_us_p99"]
    taken_off = figures["step_us_p99"] - figures["step_less_measuring_us_p99"]
    assert taken_off == pytest.approx(figures["nothing_us_p50"], abs=0.002)
    assert taken_off > 0
    assert 0 < figures["scheduled_step_us_p50"] <= figures["scheduled_step_us_p99"]
    assert figures["steps"] == 200


def test_plans_are_answered_from_what_is_held(tmp_path: Path) -> None:
    figures = measured(
        tmp_path,
        *("plan", "--plans-per-s", "100", "--seconds", "1", "--warm-s", "0.2"),
        *("--hashes", "64", "--events", "60000", "--askers", "2"),
    )
    assert figures["unanswered"] == 0
    assert 0 < figures["plan_ms_p50"] <= figures["plan_ms_p99"] <= figures["plan_ms_max"]
    # Three of four prompts are held in part or as a whole.
    assert 0.5 < figures["candidates"] / figures["asked"] < 0.95
    assert set(figures["misses"]) == {"nothing_held"}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["rebuild", "--nodes", "3"], "--nodes"),
        (["rebuild", "--store", "/nowhere/at/all"], "--store"),
        (["rebuild", "--json", "/nowhere/at/all.json"], "--json"),
    ],
)
def test_wrong_use_is_code_2_and_names_the_option(arguments: list[str], names: str) -> None:
    result = runner.invoke(app, ["bench", *arguments])
    assert result.exit_code == 2, result.output
    assert names in result.output
    assert "Traceback" not in result.output
