"""`kvferry audit`: does the ledger keep its promises?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import guard, render
from kvferry.cli.context import FileOption, JsonOption, NatsOption, open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.progress import progress
from kvferry.cli.seek import end_seq, start_seq
from kvferry.cli.times import FORMS, Point, parse_point, wall_ms
from kvferry.errors import ConfigError
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.audit.run import PATIENCE_MS, Audit, audit

SHOWN_MAX = 50


@guard.guarded
def command(
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="SEQ|TIME", help=f"First message: {FORMS}.", show_default=False
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="SEQ|TIME", help="Last message, in the same forms."),
    ] = None,
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience-s",
            min=0,
            metavar="SECONDS",
            help="What has been open for less than this at the end may still be under way.",
        ),
    ] = PATIENCE_MS / 1000,
    nats: NatsOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the invariants of the ledger over a range; code 1 if any is broken.

    Checked are: no event is missing from any lane without a declared gap; a request's local,
    pulled and computed tokens are its prompt; every request, transfer, pin and lease ends, once;
    what arrived was granted, and was used only if its source said so; a term has one leader; all
    messages can be read; and the folded state is sound. Needs no coordinator.

    Examples:

      kvferry audit

      kvferry audit --from -1d --json

      kvferry audit --file monday.kvf
    """
    now = wall_ms()
    first = parse_point(begin, now) if begin is not None else None
    last = parse_point(end, now) if end is not None else None
    done = guard.run(_audit(nats, file, first, last, round(patience_s * 1000)))
    if as_json:
        print_document(done)
    else:
        _print(done)
    if done.violations:
        raise typer.Exit(guard.TROUBLE)


async def _audit(
    nats: str | None, file: Path | None, first: Point | None, last: Point | None, patience_ms: int
) -> Audit:
    async with open_log(nats, file) as log:
        begin = await start_seq(log, FACTS_STREAM, first) if first is not None else None
        end = await end_seq(log, FACTS_STREAM, last) if last is not None else None
        bounds = await log.bounds(FACTS_STREAM)
        if (begin or bounds.first) > bounds.last or (end is not None and end < bounds.first):
            raise ConfigError(
                f"nothing of the ledger lies in that range; its facts are messages {bounds.first} "
                f"to {bounds.last}"
            )
        with progress("auditing") as report:
            return await audit(log, first=begin, last=end, patience_ms=patience_ms, progress=report)


def _print(done: Audit) -> None:
    render.line(
        f"facts {done.first} to {done.last}: {done.messages:,} messages, {done.events:,} events"
    )
    if not done.whole:
        render.line("  the range begins in the middle: what began before it is not held against it")
    for finding in done.violations[:SHOWN_MAX]:
        where = f"{finding.stream} {finding.seq}" if finding.seq else "end"
        render.line(f"BROKEN {finding.invariant} at {where}: {finding.story}")
    kinds: dict[str, int] = {}
    for note in done.notes:
        kinds[note.invariant] = kinds.get(note.invariant, 0) + 1
        if kinds[note.invariant] <= 3:
            render.line(f"note   {note.invariant} at {note.stream} {note.seq}: {note.story}")
    for name, count in kinds.items():
        if count > 3:
            render.line(f"note   {name}: {count - 3:,} more")
    more = max(0, len(done.violations) - SHOWN_MAX) + done.beyond
    if more:
        render.line(f"{more:,} more findings; see --json")
    count = len(done.violations)
    render.line("all invariants hold" if not count else f"{count:,} violations")
    if count:
        render.line("cure: `kvferry explain ID` tells a request's or transfer's whole story; "
                    "report it with `kvferry export --strip`")  # fmt: skip
