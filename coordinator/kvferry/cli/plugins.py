"""Commands that other packages of the distribution bring: the router and the demo.

The coordinator knows nothing of engines and connectors, so these are found by name in the
entry-point group ``kvferry.commands``. An entry is a :class:`typer.Typer` application or a plain
function with Typer's annotations.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable

import typer

from kvferry.cli import guard, statefile
from kvferry.errors import ConfigError

GROUP = "kvferry.commands"
NATS_ENV = "KVFERRY_NATS"
# Everything after the command's name belongs to the plugin, its --help too.
PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def load(name: str, extra: str) -> typer.Typer:
    """The application behind a command.

    Raises:
        ConfigError: it is not installed, or something that it needs is not; names the extra.
    """
    cure = f"install it with: pip install 'kvferry[{extra}]'"
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        try:
            found = entry.load()
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"`kvferry {name}` needs the module {error.name}, which is not installed; {cure}"
            ) from error
        return found if isinstance(found, typer.Typer) else _application(found)
    raise ConfigError(f"`kvferry {name}` is not part of this installation; {cure}")


def _application(function: Callable[..., None]) -> typer.Typer:
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(function)
    return application


def passing(name: str, extra: str, summary: str) -> Callable[[typer.Context], None]:
    """A command that hands its arguments to the plugin ``name``."""

    @guard.guarded
    def command(ctx: typer.Context) -> None:
        application = load(name, extra)
        up = statefile.load()
        if up is not None:
            # The plugin knows nothing of our state file, so it learns the ledger this way.
            os.environ.setdefault(NATS_ENV, up.url)
        application(args=list(ctx.args), prog_name=f"kvferry {name}")

    command.__doc__ = summary
    return command
