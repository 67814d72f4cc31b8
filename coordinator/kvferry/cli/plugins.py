"""Commands that other packages of the distribution bring: the router, the demo, TileRT's node.

The coordinator knows nothing of engines and connectors, so these are found by name in the
entry-point group ``kvferry.commands``. An entry is a :class:`typer.Typer` application or a plain
function with Typer's annotations. What stands here hands a command's arguments on to it.
"""

from __future__ import annotations

import importlib.metadata
import os

import typer

from kvferry.cli import guard, statefile
from kvferry.cli.lazy import application
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
        return application(found)
    raise ConfigError(f"`kvferry {name}` is not part of this installation; {cure}")


def passing(name: str, extra: str) -> typer.Typer:
    """A command that hands its arguments to the plugin ``name``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command(name, context_settings=PASS_ON)
    @guard.guarded
    def command(ctx: typer.Context) -> None:
        plugin = load(name, extra)
        up = statefile.load()
        if up is not None:
            # The plugin knows nothing of our state file, so it learns the ledger this way.
            os.environ.setdefault(NATS_ENV, up.url)
        plugin(args=list(ctx.args), prog_name=f"kvferry {name}")

    return app


router = passing("router", "router")
demo = passing("demo", "embedded,router")
tilert_node = passing("tilert-node", "tilert")
