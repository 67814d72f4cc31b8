"""``kvferry bench``: our own benchmarks, and those of the entry-point group ``kvferry.benches``.

Ours are listed in :data:`kvferry.bench.COMMANDS`. What measures data planes belongs to the
backends, which the coordinator must not import. Either is a plain function with Typer's
annotations. It finds in ``ctx.obj`` how a cluster key is loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

import typer
from typer.core import TyperGroup

from kvferry.bench import COMMANDS
from kvferry.cli import guard
from kvferry.errors import ConfigError
from kvferry.node.peers.keys import load_key

GROUP = "kvferry.benches"
HELP = """Measure what this machine, or two of them, can do.

Examples:

  kvferry bench link

  kvferry bench plan --help

  kvferry bench rebuild --json rebuild.json
"""


class BenchGroup(TyperGroup):
    """Finds its commands by name among the installed ones, and loads those that are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Our own and the installed names, in alphabetical order."""
        installed = (entry.name for entry in importlib.metadata.entry_points(group=GROUP))
        return sorted({*COMMANDS, *installed})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; one that cannot be loaded says so when it is run."""
        try:
            function = _load(cmd_name)
        except ImportError as error:
            function = _missing(cmd_name, error)
        if function is None:
            return None
        application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        application.command(cmd_name)(function)
        return typer.main.get_command(application)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; its errors end in a line on stderr and an exit code."""
        return guard.guarded(super().invoke)(ctx)


def _load(name: str) -> Any:
    """The function of a command; None where there is none of that name."""
    if name in COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        return getattr(importlib.import_module(module), function)
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        return entry.load()
    return None


def _missing(name: str, error: ImportError) -> Any:
    def command() -> None:
        raise ConfigError(
            f"`kvferry bench {name}` needs what is not installed here ({error}); install it"
        )

    command.__doc__ = f"Needs what is not installed here: {error}"
    return command


app = typer.Typer(cls=BenchGroup, help=HELP, no_args_is_help=True)


@app.callback(help=HELP)
def configure(ctx: typer.Context) -> None:
    ctx.obj = load_key
