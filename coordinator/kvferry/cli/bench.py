"""``kvferry bench``: a group whose commands come from the entry-point group ``kvferry.benches``.

What is measured belongs to whoever brings it; the coordinator must not import it. An entry is a
plain function with Typer's annotations. It finds in ``ctx.obj`` how a cluster key is loaded.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import typer
from typer.core import TyperGroup

from kvferry.cli import guard
from kvferry.errors import ConfigError
from kvferry.node.peers.keys import load_key

GROUP = "kvferry.benches"
HELP = """Measure what this machine, or two of them, can do.

Examples:

  kvferry bench link

  kvferry bench link --help
"""


class BenchGroup(TyperGroup):
    """Finds its commands by name among the installed ones, and loads those that are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Installed names, in alphabetical order."""
        return sorted(entry.name for entry in importlib.metadata.entry_points(group=GROUP))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; one that cannot be loaded says so when it is run."""
        for entry in importlib.metadata.entry_points(group=GROUP, name=cmd_name):
            try:
                function = entry.load()
            except ImportError as error:
                function = _missing(cmd_name, error)
            application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            application.command(cmd_name)(function)
            return typer.main.get_command(application)
        return None

    def invoke(self, ctx: Any) -> Any:
        """Run a command; its errors end in a line on stderr and an exit code."""
        return guard.guarded(super().invoke)(ctx)


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
