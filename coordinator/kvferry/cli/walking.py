"""`kvferry replay --step`: through the messages around a point, by keys."""

from __future__ import annotations

import signal
from pathlib import Path

import typer

from kvferry.cli.changeview import plain, print_changes
from kvferry.cli.context import open_log
from kvferry.cli.eventrecord import as_line, records
from kvferry.cli.keyboard import QUIT, Keyboard
from kvferry.cli.points import state_at
from kvferry.cli.progress import progress
from kvferry.cli.stopping import StopRequest, unless_stopped
from kvferry.cli.times import Point
from kvferry.ports.log import FACTS_STREAM, LogPort
from kvferry.replay.steps.part import changes, named, summary
from kvferry.replay.steps.walk import Place, Walk

NEXT, BACK = "n", "b"
HELP = "n next, b back, q quit"


async def walk(
    nats: str | None, file: Path | None, point: Point, wanted: list[str], fd: int, *, afresh: bool
) -> None:
    """Until the key to quit, Ctrl-C or SIGTERM.

    Raises:
        ConfigError: no such node.
        LedgerError: the ledger cannot be read.
    """
    async with open_log(nats, file) as log:
        with StopRequest(also=(signal.SIGHUP, signal.SIGQUIT)) as stop:
            await unless_stopped(stop, _walk(log, point, wanted, fd, afresh=afresh))


async def _walk(log: LogPort, point: Point, wanted: list[str], fd: int, *, afresh: bool) -> None:
    with progress("folding") as report:
        state = await state_at(log, point, afresh=afresh, progress=report)
    nodes = named(state, wanted)
    steps = Walk(log)
    with progress("folding") as report:
        here = await steps.begin(state, report)
    with Keyboard(fd) as keyboard:
        typer.echo(HELP)
        _print(here, nodes)
        await _keys(steps, keyboard, nodes)


async def _keys(steps: Walk, keyboard: Keyboard, nodes: frozenset[str]) -> None:
    while (key := (await keyboard.key()).lower()) != QUIT:
        if key == NEXT:
            _show(await steps.forward(), nodes, "this is the ledger's end; n looks again")
        elif key == BACK:
            with progress("folding") as report:
                place = await steps.back(report)
            _show(place, nodes, "the ledger begins here")
        else:
            typer.echo(HELP)


def _show(place: Place | None, nodes: frozenset[str], otherwise: str) -> None:
    if place is None:
        typer.echo(otherwise)
    else:
        _print(place, nodes)


def _print(place: Place, nodes: frozenset[str]) -> None:
    typer.echo("")
    if place.message is None:
        typer.echo(f"before message {place.after.position + 1}")
    else:
        for record in records(FACTS_STREAM, place.message):
            typer.echo(plain(as_line(record)))
        print_changes(changes(place.before, place.after, nodes))
    typer.echo(f"  = {summary(place.after, nodes).line()}")
