"""A command starts without importing the others, and is listed as it explains itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.unit.cli import running
from typer.testing import CliRunner

from kvferry.bench import COMMANDS as BENCHES
from kvferry.cli import bench, commands
from kvferry.cli.lazy import Entry, LazyGroup
from kvferry.cli.main import app

BOUND_S = 120.0
# Runs kvferry with the arguments, then writes what the process has imported to the first one.
PROBE = """
import json, sys
from pathlib import Path
from kvferry.cli.main import app
code = 0
try:
    app(args=sys.argv[2:], prog_name="kvferry")
except SystemExit as ended:
    code = ended.code
Path(sys.argv[1]).write_text(json.dumps({"code": code, "modules": sorted(sys.modules)}))
"""
HEAVY = {
    "aiohttp",
    "asyncio",
    "kvferry.core",
    "kvferry.daemon",
    "kvferry.ledger",
    "kvferry.replay",
    "kvferry_backends",
    "kvferry_connectors",
    "msgspec",
    "nats",
    "numpy",
    "torch",
    "vllm",
}
PLUGINS = {"router", "demo", "tilert-node"}


def imported(tmp_path: Path, *arguments: str, code: int = 0) -> set[str]:
    """What a process that runs this command, and nothing else, has imported at its end."""
    file = tmp_path / "modules.json"
    command = [sys.executable, "-c", PROBE, str(file), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=True)
    told: dict[str, Any] = json.loads(file.read_text())
    assert told["code"] == code, ended.stderr
    return set(told["modules"])


def test_a_listing_imports_no_command_and_nothing_heavy(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--help")
    assert not modules & HEAVY
    assert not modules & {entry.target.partition(":")[0] for entry in commands.COMMANDS}


def test_what_a_command_needs_is_imported_and_seen(tmp_path: Path) -> None:
    modules = imported(tmp_path, "status", "--nats", "http://x", code=2)
    assert {"asyncio", "msgspec", "nats", "kvferry.ledger", "kvferry.cli.status"} <= modules
    assert not modules & {"torch", "vllm", "kvferry_connectors", "kvferry_backends"}
    assert not modules & {"kvferry.cli.top", "kvferry.cli.whatif", "kvferry.cli.coordinator"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["version"], 0), (["--version"], 0), (["statsu"], 2), (["status", "--help"], 0)],
)
def test_what_needs_no_ledger_imports_no_client(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    modules = imported(tmp_path, *arguments, code=code)
    assert not modules & {"nats", "aiohttp", "kvferry.ledger.jetstream"}


def first_paragraph(*names: str) -> str:
    return " ".join(running.command(*names).help.split("\n\n")[0].split())


def test_every_command_is_listed_with_the_first_paragraph_of_its_help() -> None:
    own = [entry for entry in commands.COMMANDS if entry.name not in PLUGINS]
    assert {one.name: one.summary for one in own} == {
        one.name: first_paragraph(one.name) for one in own
    }
    assert {name: one.summary for name, one in BENCHES.items()} == {
        name: first_paragraph("bench", name) for name in BENCHES
    }
    summaries = [one.summary for one in (*own, *BENCHES.values())]
    assert len(set(summaries)) == len(summaries) > 20, "one of another command would be noticed"


def test_a_command_of_another_package_is_imported_to_be_listed() -> None:
    link = next(entry for entry in bench.BenchGroup().entries() if entry.name == "link")
    assert link.summary == ""
    assert first_paragraph("bench", "link")[:30] in CliRunner().invoke(app, ["bench"]).output


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "status"), ("upp", "up")])
def test_a_mistyped_command_is_corrected(typed: str, meant: str) -> None:
    result = CliRunner().invoke(app, [typed])
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'" in result.stderr


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("kvferry st", {"status"}, {"up"}),
        ("kvferry status --", {"--nats", "--json"}, {"--debug"}),
        ("kvferry bench ", {"link", "plan"}, {"status"}),
        ("kvferry bench plan --", {"--plans-per-s"}, {"--nats"}),
    ],
)
def test_a_shell_completes_commands_and_their_options(
    line: str, offered: set[str], not_offered: set[str]
) -> None:
    words = line.split(" ")
    asked = {
        "_KVFERRY_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(app, [], prog_name="kvferry", env=asked)
    told = set(result.output.split())
    assert offered <= told
    assert not told & not_offered


class _Broken(LazyGroup):
    def entries(self) -> list[Entry]:
        return [Entry("needy", "kvferry_no_such_module:command", "Needs something.")]


def test_a_command_that_cannot_be_imported_says_so_when_it_is_run_and_is_still_listed() -> None:
    broken = typer.Typer(cls=_Broken, name="kvferry")
    broken.callback()(lambda: None)
    assert "Needs something." in CliRunner().invoke(broken, ["--help"]).stdout
    result = CliRunner().invoke(broken, ["needy"])
    assert result.exit_code == 2
    assert "`kvferry needy`" in result.stderr
    assert "kvferry_no_such_module" in result.stderr
