"""`kvferry replay --follow`: a line whenever the state changes, and what changed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import typer

from kvferry.cli.changeview import print_changes
from kvferry.cli.context import open_log
from kvferry.cli.jsonable import print_line
from kvferry.cli.progress import progress
from kvferry.cli.serving import StopRequest
from kvferry.cli.times import clock, iso
from kvferry.core.state import State
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
        with progress("folding") as report:
            state = await fold_to(log, from_snapshot=not afresh, progress=report)
        nodes = named(state, wanted)
        with StopRequest() as stop:
            telling = asyncio.create_task(_tell(log, state, nodes, as_json=as_json), name="tell")
            stopping = asyncio.create_task(stop.event.wait(), name="stop request")
            try:
                await asyncio.wait((telling, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                if not telling.done():
                    telling.cancel()
                await asyncio.gather(telling, stopping, return_exceptions=True)
        if not telling.cancelled():
            telling.result()


async def _tell(log: LogPort, state: State, nodes: frozenset[str], *, as_json: bool) -> None:
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
