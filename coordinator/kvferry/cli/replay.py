"""`kvferry replay`: the state at a point of the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import guard
from kvferry.cli.context import FileOption, JsonOption, NatsOption, open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.stateview import print_state, state_document
from kvferry.cli.times import FORMS, Point, parse_point, wall_ms
from kvferry.replay.fold import fold_to


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
    """
    now = wall_ms()
    point = parse_point(to, now) if to is not None else Point()
    guard.run(_show(nats, file, point, now, afresh=afresh, only_digest=digest, as_json=as_json))


async def _show(
    nats: str | None,
    file: Path | None,
    point: Point,
    now: int,
    *,
    afresh: bool,
    only_digest: bool,
    as_json: bool,
) -> None:
    async with open_log(nats, file) as ledger:
        state = await fold_to(
            ledger, to_seq=point.seq, to_time_ms=point.time_ms, from_snapshot=not afresh
        )
    document = state_document(state)
    if only_digest:
        short = {"position": document["position"], "digest": document["digest"]}
        if as_json:
            print_document(short)
        else:
            typer.echo(document["digest"])
    elif as_json:
        print_document(document)
    else:
        print_state(document, point.time_ms or now)
