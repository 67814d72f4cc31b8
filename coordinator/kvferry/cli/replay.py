"""`kvferry replay`: the state at a point of the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import following, guard, walking
from kvferry.cli.context import open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.keyboard import terminal_fd
from kvferry.cli.options import FileOption, JsonOption, NatsOption
from kvferry.cli.points import state_at
from kvferry.cli.progress import progress
from kvferry.cli.statepart import only
from kvferry.cli.stateview import print_state, state_document
from kvferry.cli.times import FORMS, Point, parse_point, wall_ms
from kvferry.errors import ConfigError
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.reading import message_at
from kvferry.replay.steps.part import named


@guard.guarded
def command(
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="SEQ|TIME",
            help=f"The point to fold to; without it the end of the ledger. {FORMS}. "
            "A time means when the server stored an event.",
            show_default=False,
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="Only this node's part. Repeatable."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Go on from the end: a line whenever the state changes, and what changed, until "
            "Ctrl-C.",
        ),
    ] = False,
    step: Annotated[
        bool,
        typer.Option(
            "--step",
            help="Go through the messages around the point by keys: n next, b back, q quit.",
        ),
    ] = False,
    afresh: Annotated[
        bool,
        typer.Option("--afresh", help="Fold from the first event, not from a checkpoint."),
    ] = False,
    digest: Annotated[
        bool,
        typer.Option("--digest", help="Print the digest of the state and nothing else."),
    ] = False,
    nats: NatsOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show nodes, offers, transfers and totals as they were at a point.

    Folds the ledger itself, so it works without a coordinator, and never moves a byte.

    Examples:

      kvferry replay --to -10m                    ten minutes ago

      kvferry replay --to 81234 --json

      kvferry replay --digest                     compare two folds, or two machines

      kvferry replay --follow --node d0           what changes on d0 from now on

      kvferry replay --to -10m --step             message by message from there
    """
    now = wall_ms()
    point = parse_point(to, now) if to is not None else Point()
    nodes = node or []
    if digest and (nodes or follow or step):
        raise ConfigError(
            "--digest is of the whole state at one point: leave out --node, --follow and --step"
        )
    if follow:
        _check_follow(to, file, step=step)
        guard.run(following.follow(nats, nodes, afresh=afresh, as_json=as_json))
    elif step:
        guard.run(walking.walk(nats, file, point, nodes, _keys(as_json), afresh=afresh))
    else:
        guard.run(
            _show(nats, file, point, now, nodes, afresh=afresh, only_digest=digest, as_json=as_json)
        )


def _check_follow(to: str | None, file: Path | None, *, step: bool) -> None:
    """
    Raises:
        ConfigError: an option that contradicts --follow.
    """
    if to is not None:
        raise ConfigError("--follow goes on from the end: leave out --to, or go with --step")
    if step:
        raise ConfigError("--follow and --step: leave one of them out")
    if file is not None:
        raise ConfigError("--follow: nothing comes to a file any more; leave out --follow")


def _keys(as_json: bool) -> int:
    """The terminal that --step reads keys from.

    Raises:
        ConfigError: there is none, or a document is wanted.
    """
    if as_json:
        raise ConfigError("--step is for people: leave out --json, or ask with --to SEQ --json")
    fd = terminal_fd()
    if fd is None:
        raise ConfigError(
            "--step: stdin is no terminal to read keys from; ask for one point with --to SEQ"
        )
    return fd


async def _show(
    nats: str | None,
    file: Path | None,
    point: Point,
    now: int,
    nodes: list[str],
    *,
    afresh: bool,
    only_digest: bool,
    as_json: bool,
) -> None:
    async with open_log(nats, file) as log:
        with progress("folding") as report:
            state = await state_at(log, point, afresh=afresh, progress=report)
        then = None
        if point.seq is not None or file is not None:
            then = await message_at(log, FACTS_STREAM, state.position)
    document = state_document(state)
    if nodes:
        document = only(document, named(state, nodes))
    if only_digest:
        short = {"position": document["position"], "digest": document["digest"]}
        if as_json:
            print_document(short)
        else:
            typer.echo(document["digest"])
    elif as_json:
        print_document(document)
    else:
        # Ages are those of the point that was asked for, and not of the day on which it was asked.
        print_state(document, point.time_ms or (then.stored_ms if then is not None else now))
