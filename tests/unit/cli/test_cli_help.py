"""Every command explains itself, and errors are lines with a cure and an exit code."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest
import typer
from tests.unit.cli import running
from typer.testing import CliRunner

from kvferry.cli import guard, plugins
from kvferry.cli.main import app
from kvferry.errors import ConfigError, KVFerryError, LedgerRefused, LedgerUnavailable

ROOT = Path(__file__).parents[3]
COMMANDS = {
    "up",
    "coordinator",
    "router",
    "demo",
    "tilert-node",
    "status",
    "top",
    "events",
    "explain",
    "replay",
    "diff",
    "audit",
    "advise",
    "whatif",
    "export",
    "import",
    "doctor",
    "bench",
    "version",
    "pause",
    "resume",
    "observe",
    "policy",
    "drain",
    "undrain",
}
PLUGINS = {"router", "demo", "tilert-node"}
NOWHERE = "nats://127.0.0.1:9"
runner = CliRunner()


def group() -> typer.core.TyperGroup:
    found = typer.main.get_command(app)
    assert isinstance(found, typer.core.TyperGroup)
    return found


def test_all_commands_are_there_and_listed() -> None:
    assert set(group().commands) == COMMANDS
    listed = runner.invoke(app, ["--help"]).stdout
    for name in COMMANDS:
        assert name in listed


@pytest.mark.parametrize("name", sorted(COMMANDS - PLUGINS))
def test_every_option_has_a_help_text_and_every_command_an_example(name: str) -> None:
    command = running.command(name)
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name}: {parameter.name} has no help"
    assert "Example" in (command.help or "")
    assert f"kvferry {name}" in (command.help or "")
    result = runner.invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert result.stdout.strip()


def test_queries_have_json_and_the_ledgers_url() -> None:
    for name in COMMANDS - PLUGINS - {"up", "coordinator", "bench", "version"}:
        flags = {flag for one in running.command(name).params for flag in one.opts}
        assert {"--json", "--nats"} <= flags, name


def test_the_version_is_told_in_three_ways() -> None:
    version = importlib.metadata.version("kvferry")
    assert runner.invoke(app, ["--version"]).stdout == f"kvferry {version}\n"
    assert f"kvferry {version}" in runner.invoke(app, ["version"]).stdout
    assert json.loads(runner.invoke(app, ["version", "--json"]).stdout)["kvferry"] == version


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["top"],
        ["events"],
        ["replay"],
        ["audit"],
        ["advise"],
        ["diff", "-1h", "now"],
        ["explain", "some-request"],
        ["export", "never-written.kvf"],
        ["pause"],
        ["coordinator", "--wait-s", "0"],
    ],
)
def test_a_ledger_that_does_not_answer_is_code_3_with_url_and_cure(arguments: list[str]) -> None:
    result = runner.invoke(app, [*arguments, "--nats", NOWHERE])
    assert result.exit_code == guard.UNREACHABLE
    assert NOWHERE in result.stderr
    assert "kvferry up" in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_doctor_says_so_too_and_stays_a_document() -> None:
    result = runner.invoke(app, ["doctor", "--nats", NOWHERE, "--json"])
    assert result.exit_code == guard.UNREACHABLE
    document = json.loads(result.stdout)
    assert document["ok"] is False
    nats = next(one for one in document["checks"] if one["check"] == "nats")
    assert nats["level"] == "fail"
    assert nats["cure"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["events", "--kind", "retaind"], "did you mean retained"),
        (["events", "--lane", "fast"], "--lane fast"),
        (["events", "--from", "yesterday"], "no point on the ledger"),
        (["events", "--follow", "--to", "5"], "--follow has no end"),
        (["events", "--lane", "all", "--from", "5"], "as times"),
        (["replay", "--to", "soon"], "no point on the ledger"),
        (["replay", "--follow", "--to", "5"], "leave out --to"),
        (["replay", "--follow", "--step"], "leave one of them out"),
        (["replay", "--follow", "--file", "a.kvf"], "nothing comes to a file"),
        (["replay", "--step", "--json"], "leave out --json"),
        (["replay", "--digest", "--node", "d0"], "--digest is of the whole state"),
        (["top", "--file", "no-such.kvf"], "no-such.kvf"),
        (["diff"], "--other"),
        (["diff", "soon", "now"], "no point on the ledger"),
        (["diff", "-1h", "--frobnicate"], "--frobnicate"),
        (["diff", "--other", "no-such.kvf", "--file", "no-such.kvf"], "no-such.kvf"),
        (["status", "--nats", "http://x"], "not the url of a NATS server"),
        (["up", "--replica", "a.b"], "does not fit one NATS token"),
        (["coordinator", "--silent-after-s", "0"], "silent_after_s=0"),
        (["frobnicate"], "frobnicate"),
        (["status", "--frobnicate"], "--frobnicate"),
        (["explain"], "REQUEST"),
        (["explain", "r", "--file", "no-such.kvf"], "no-such.kvf"),
        (["replay", "--file", __file__], "not a file that `kvferry export` wrote"),
        (["events", "--file", "a.kvf", "--follow"], "nothing comes to a file"),
        (["events", "--file", "a.kvf", "--nats", NOWHERE], "two sources"),
        (["export", __file__], "--force"),
        (["advise", "--from", "no-such.jsonl"], "--from no-such.jsonl"),
        (["advise", "--from", "a.jsonl", "--file", "a.kvf"], "two sources"),
        (["advise", "--link-gb-per-s", "0"], "--link-gb-per-s 0"),
        (["advise", "--retention-s", "-1"], "--retention-s -1"),
        (["import", "no-such.kvf"], "no-such.kvf"),
    ],
)
def test_wrong_usage_is_code_2_and_names_the_option(arguments: list[str], text: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == guard.USAGE
    assert text in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), guard.USAGE),
        (LedgerUnavailable("x"), guard.UNREACHABLE),
        (LedgerRefused("x"), guard.UNREACHABLE),
        (KVFerryError("x"), guard.TROUBLE),
        (ZeroDivisionError("x"), guard.TROUBLE),
        (KeyboardInterrupt(), guard.INTERRUPTED),
    ],
)
def test_every_error_has_its_code_and_no_traceback(error: BaseException, code: int) -> None:
    application = typer.Typer()

    @application.command()
    @guard.guarded
    def command() -> None:
        raise error

    result = runner.invoke(application, [])
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_a_plugin_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "GROUP", "kvferry.commands.of.nobody")
    result = runner.invoke(app, ["router", "--prefill", "http://x"])
    assert result.exit_code == guard.USAGE
    assert "pip install 'kvferry[router]'" in result.stderr


def test_a_plugin_whose_extra_is_missing_names_module_and_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = importlib.metadata.EntryPoint("demo", "kvferry_no_such_module:command", "g")
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda **_: [broken])
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == guard.USAGE
    assert "kvferry_no_such_module" in result.stderr
    assert "pip install 'kvferry[embedded,router]'" in result.stderr


def test_a_plugin_gets_its_arguments_and_its_help(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("router", "kvferry_connectors.router.cli:app", "g")
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda **_: [entry])
    helped = runner.invoke(app, ["router", "--help"])
    assert helped.exit_code == 0
    assert "--prefill" in helped.stdout
    wrong = runner.invoke(app, ["router", "--prefill", "ftp://x", "--decode", "http://y"])
    assert wrong.exit_code == guard.USAGE
    assert "ftp://x" in wrong.stderr


def test_plugins_are_declared_and_the_router_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["kvferry.commands"]
    assert set(declared) == PLUGINS
    module, _, attribute = declared["router"].partition(":")
    router = getattr(importlib.import_module(module), attribute)
    command = typer.main.get_command(router)
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"router: {parameter.name} has no help"
