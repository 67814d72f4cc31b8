"""Commands run within the tests' own process."""

from __future__ import annotations

import json
from typing import Any

import typer
from typer.testing import CliRunner

from kvferry.cli import guard
from kvferry.cli.main import app

runner = CliRunner()


def run(*arguments: str, code: int = guard.OK) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


def document(*arguments: str, code: int = guard.OK) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


def command(*names: str) -> Any:
    """The command itself, which a group imports when it is called for."""
    found: Any = typer.main.get_command(app)
    for name in names:
        context = found.make_context(name, [], resilient_parsing=True)
        _, found, _ = found.resolve_command(context, [name])
    return found
