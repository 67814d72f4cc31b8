"""Commands run within the tests' own process."""

from __future__ import annotations

import json
from typing import Any

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
