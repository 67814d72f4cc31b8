"""`kvferry events`: what happened, one line an event."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvferry.cli import guard
from kvferry.cli.context import open_log
from kvferry.cli.eventrecord import Record, Wanted, as_document, as_line
from kvferry.cli.eventstream import Range, last_records, read_ranges
from kvferry.cli.jsonable import print_line
from kvferry.cli.options import FileOption, NatsOption
from kvferry.cli.ranges import parse_ends
from kvferry.cli.seek import end_seq, start_seq
from kvferry.cli.times import FORMS, Point
from kvferry.core.events import SCHEMAS
from kvferry.errors import ConfigError
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, LogPort
from kvferry.replay.reading import covered

TAIL_EVENTS = 50
LANES = {
    "facts": (FACTS_STREAM,),
    "blocks": (BLOCKS_STREAM,),
    "all": (FACTS_STREAM, BLOCKS_STREAM),
}


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The command's options after they were checked."""

    streams: tuple[str, ...]
    begin: Point | None
    end: Point | None
    follow: bool
    limit: int | None
    as_json: bool


@guard.guarded
def command(
    nats: NatsOption = None,
    file: FileOption = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on with new events until Ctrl-C."),
    ] = False,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="SEQ|TIME", help=f"First event to show: {FORMS}."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="SEQ|TIME", help="Last event to show, in the same forms."),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="Events of or about this node. Repeatable."),
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option("--space", metavar="SPACE", help="Events of this space. Repeatable."),
    ] = None,
    request: Annotated[
        str,
        typer.Option(
            "--request",
            metavar="ID",
            help="Events of this request (the engine's id, the router's, or X-Request-Id), "
            "its transfers and their pins.",
        ),
    ] = "",
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="EVENT",
            help=f"Events of this kind. Repeatable. Kinds: {', '.join(SCHEMAS)}.",
        ),
    ] = None,
    lane: Annotated[
        str,
        typer.Option(
            "--lane",
            metavar="facts|blocks|all",
            help="facts: decisions, days of history; blocks: detail, about an hour.",
        ),
    ] = "facts",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            metavar="N",
            help=f"At most so many events: the first N from --from on, else the last N "
            f"(default {TAIL_EVENTS}).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document a line, with stable keys.")
    ] = False,
) -> None:
    """Show events of the ledger: a range, the last few, or as they come.

    Examples:

      kvferry events                              the last 50

      kvferry events -f --kind transferred        every transfer from now on

      kvferry events --from -5m --node d0         what d0 did in the last five minutes

      kvferry events --request chatcmpl-8f2c --lane all --json
    """
    wanted = Wanted(
        spaces=frozenset(space or ()),
        nodes=frozenset(node or ()),
        kinds=_kinds(kind or []),
        request=request,
    )
    if lane not in LANES:
        raise ConfigError(f"--lane {lane}: there are {', '.join(LANES)}")
    if follow and end is not None:
        raise ConfigError("--follow has no end: leave out --to, or leave out --follow")
    if follow and file is not None:
        raise ConfigError("--follow: nothing comes to a file any more; leave out --follow")
    first, last = parse_ends(begin, end)
    selection = Selection(
        streams=LANES[lane],
        begin=first,
        end=last,
        follow=follow,
        limit=limit,
        as_json=as_json,
    )
    if lane == "all" and any(
        p is not None and p.seq is not None for p in (selection.begin, selection.end)
    ):
        raise ConfigError(
            "--lane all reads two streams, each with its own sequences: give --from and --to as "
            "times"
        )
    try:
        guard.run(_show(nats, file, selection, wanted))
    except KeyboardInterrupt:
        if not follow:
            raise


def _kinds(names: list[str]) -> frozenset[str]:
    for name in names:
        if name not in SCHEMAS:
            near = difflib.get_close_matches(name, SCHEMAS, n=3) or list(SCHEMAS)
            raise ConfigError(f"--kind {name}: no such event; did you mean {', '.join(near)}?")
    return frozenset(names)


async def _show(nats: str | None, file: Path | None, selection: Selection, wanted: Wanted) -> None:
    async with open_log(nats, file) as log:
        if selection.begin is None:
            shown = await _tail(log, selection, wanted)
        else:
            parts = await _parts(log, selection)
            shown = await _stream(log, parts, selection, wanted, limit=selection.limit)
        if not shown and not selection.follow and not selection.as_json:
            guard.note(await _nothing(log, selection))


async def _tail(log: LogPort, selection: Selection, wanted: Wanted) -> int:
    """The last few events, and with --follow those that come after them."""
    count = selection.limit or TAIL_EVENTS
    found: list[Record] = []
    rest: list[Range] = []
    for stream in selection.streams:
        last = await _end(log, stream, selection)
        found += await last_records(log, stream, wanted, count, last)
        rest.append(Range(stream, last + 1, None))
    found.sort(key=lambda record: record.stored.stored_ms)
    for record in found[-count:]:
        _print(record, selection.as_json)
    if selection.follow:
        return len(found) + await _stream(log, rest, selection, wanted, limit=None)
    return len(found)


async def _stream(
    log: LogPort, parts: list[Range], selection: Selection, wanted: Wanted, *, limit: int | None
) -> int:
    shown = 0
    async for record in read_ranges(log, parts, wanted, follow=selection.follow):
        _print(record, selection.as_json)
        shown += 1
        if limit is not None and shown >= limit:
            break
    return shown


async def _parts(log: LogPort, selection: Selection) -> list[Range]:
    assert selection.begin is not None
    parts = []
    for stream in selection.streams:
        first = await start_seq(log, stream, selection.begin)
        last = None if selection.follow else await _end(log, stream, selection)
        parts.append(Range(stream, first, last))
    return parts


async def _end(log: LogPort, stream: str, selection: Selection) -> int:
    last = (await log.bounds(stream)).last
    return last if selection.end is None else min(last, await end_seq(log, stream, selection.end))


async def _nothing(log: LogPort, selection: Selection) -> str:
    held = []
    for stream in selection.streams:
        bounds = await log.bounds(stream)
        if bounds.last >= bounds.first:
            held.append(f"{stream} holds {await covered(log, stream)}")
        else:
            held.append(f"{stream} is empty: no node has joined yet")
    return f"no event matches; {'; '.join(held)}"


def _print(record: Record, as_json: bool) -> None:
    if as_json:
        print_line(as_document(record))
    else:
        typer.echo(as_line(record))
