"""``kvferry bench``: our own benchmarks, and those of the entry-point group ``kvferry.benches``.

Ours are listed in :data:`kvferry.bench.COMMANDS`. What measures data planes belongs to the
backends, which the coordinator must not import. Either is a plain function with Typer's
annotations. It finds in ``ctx.obj`` how a cluster key is loaded.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from typing import Any

import typer

from kvferry.bench import COMMANDS
from kvferry.cli import guard
from kvferry.cli.lazy import Entry, LazyGroup
from kvferry.node.peers.keys import load_key

GROUP = "kvferry.benches"
HELP = """Measure what this machine, or two of them, can do.

Examples:

  kvferry bench link

  kvferry bench plan --help

  kvferry bench rebuild --json rebuild.json
"""


class BenchGroup(LazyGroup):
    """Our own benchmarks and the installed ones, in alphabetical order."""

    def entries(self) -> Iterable[Entry]:
        installed = (
            Entry(one.name, f"{one.module}:{one.attr}")
            for one in importlib.metadata.entry_points(group=GROUP)
        )
        ours = (Entry(name, one.target, one.summary) for name, one in COMMANDS.items())
        # Of two with one name the group keeps the last, which is ours.
        return sorted((*installed, *ours), key=lambda entry: entry.name)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; its errors end in a line on stderr and an exit code."""
        return guard.guarded(super().invoke)(ctx)


app = typer.Typer(
    cls=BenchGroup,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(help=HELP)
def configure(ctx: typer.Context) -> None:
    ctx.obj = load_key
