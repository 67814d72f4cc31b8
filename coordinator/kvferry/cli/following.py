"""`kvferry replay --follow`: a line whenever the state changes, and what changed."""

from __future__ import annotations

from contextlib import aclosing

import typer

from kvferry.cli.changeview import print_changes
from kvferry.cli.context import open_log
from kvferry.cli.jsonable import print_line
from kvferry.cli.progress import progress
from kvferry.cli.stopping import StopRequest, unless_stopped
from kvferry.cli.times import clock, iso
from kvferry.ports.log import LogPort
from kvferry.replay.fold import fold_to
from kvferry.replay.steps.follow import Turn, turns
from kvferry.replay.steps.part import named, summary


async def follow(nats: str | None, wanted: list[str], *, afresh: bool, as_json: bool) -> None:
    """Until Ctrl-C or SIGTERM.

    Raises:
        ConfigError: no such node.
        LedgerError: the ledger cannot be read, or is another one now.
    """
    async with open_log(nats, None) as log:
        with StopRequest() as stop:
            await unless_stopped(stop, _follow(log, wanted, afresh=afresh, as_json=as_json))


async def _follow(log: LogPort, wanted: list[str], *, afresh: bool, as_json: bool) -> None:
    with progress("folding") as report:
        state = await fold_to(log, from_snapshot=not afresh, progress=report)
    nodes = named(state, wanted)
    if not as_json:
        typer.echo(f"{state.position:>7}  {summary(state, nodes).line()}")
    async with aclosing(turns(log, state, nodes)) as told:
        async for turn in told:
            _print(turn, nodes, as_json=as_json)


def _print(turn: Turn, nodes: frozenset[str], *, as_json: bool) -> None:
    now = summary(turn.state, nodes)
    if as_json:
        print_line(
            {
                "position": now.position,
                "time": iso(turn.stored_ms),
                "stored_ms": turn.stored_ms,
                "summary": now,
                "changes": turn.changes,
            }
        )
        return
    typer.echo(f"{now.position:>7}  {clock(turn.stored_ms)}  {now.line()}")
    print_changes(turn.changes)
