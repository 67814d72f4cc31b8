"""`kvferry export`: the ledger as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import guard, render
from kvferry.cli.context import open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import FileOption, JsonOption, NatsOption
from kvferry.cli.progress import progress
from kvferry.cli.ranges import ToOption, parse_ends
from kvferry.cli.seek import end_seq, start_seq
from kvferry.cli.times import FORMS, Point
from kvferry.errors import ConfigError
from kvferry.ledger.archive.contents import Range
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, LogPort
from kvferry.replay.exporting import Exported, export, whole
from kvferry.replay.perfetto.write import Traced, write_trace
from kvferry.replay.reading import covered, first_from


@guard.guarded
def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write, e.g. monday.kvf.")],
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SEQ|TIME",
            help=f"First message of the facts: {FORMS}.",
            show_default=False,
        ),
    ] = None,
    end: ToOption = None,
    facts_only: Annotated[
        bool, typer.Option("--facts-only", help="Leave the blocks lane's detail out.")
    ] = False,
    strip: Annotated[
        bool,
        typer.Option(
            "--strip",
            help="Replace names of requests and sessions and the hashes of blocks by others that "
            "nobody can look up, and leave free text out.",
        ),
    ] = False,
    perfetto: Annotated[
        bool,
        typer.Option(
            "--perfetto",
            help="Write a trace of the facts for the Perfetto UI instead: a track a node and tier, "
            "transfers with arrows from their source, plans and faults.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    nats: NatsOption = None,
    source: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the ledger, or a part of it, to one compressed file.

    Whatever looks at the ledger (replay, explain, events, diff, audit, whatif, advise, top) looks
    at the file as well, with --file, on any machine. Where the facts begin later than the ledger,
    the state before them goes along.

    Examples:

      kvferry export monday.kvf --from 2026-11-30 --to 2026-12-01

      kvferry export to-the-maintainers.kvf --strip

      kvferry explain chatcmpl-8f2c41d0 --file monday.kvf

      kvferry export monday.pftrace --perfetto --file monday.kvf
    """
    if file.exists() and not force:
        raise ConfigError(f"{file} exists: name another file, or add --force")
    first, last = parse_ends(begin, end)
    if perfetto and (strip or facts_only):
        raise ConfigError(
            "--perfetto draws the facts as they are: export with --strip first, then draw that file"
        )
    done: Exported | Traced
    if perfetto:
        done = guard.run(_trace(nats, source, file, first, last))
    else:
        done = guard.run(
            _export(nats, source, file, first, last, facts_only=facts_only, strip=strip)
        )
    if as_json:
        print_document(done)
    else:
        _print(done)


async def _trace(
    nats: str | None, source: Path | None, file: Path, first: Point | None, last: Point | None
) -> Traced:
    async with open_log(nats, source) as log:
        facts = (await _ranges(log, first, last))[FACTS_STREAM]
        with progress("drawing") as report:
            return await write_trace(log, file, facts.first, facts.last, progress=report)


async def _export(
    nats: str | None,
    source: Path | None,
    file: Path,
    first: Point | None,
    last: Point | None,
    *,
    facts_only: bool,
    strip: bool,
) -> Exported:
    async with open_log(nats, source) as ledger:
        ranges = await _ranges(ledger, first, last)
        if facts_only:
            blocks = ranges[BLOCKS_STREAM]
            ranges[BLOCKS_STREAM] = Range(blocks.first, blocks.first - 1)
        with progress("exporting") as report:
            return await export(ledger, file, ranges, strip=strip, progress=report)


async def _ranges(log: LogPort, first: Point | None, last: Point | None) -> dict[str, Range]:
    held = await whole(log)
    facts = await _within(log, FACTS_STREAM, held[FACTS_STREAM], first, last)
    if facts.last < facts.first and (first is not None or last is not None):
        raise ConfigError(
            "nothing of the ledger lies in that range; its facts are "
            f"{await covered(log, FACTS_STREAM)}"
        )
    times = [await _time_of(log, point) for point in (first, last)]
    blocks = await _within(log, BLOCKS_STREAM, held[BLOCKS_STREAM], *times)
    return {FACTS_STREAM: facts, BLOCKS_STREAM: blocks}


async def _within(
    log: LogPort, stream: str, held: Range, first: Point | None, last: Point | None
) -> Range:
    begin = held.first if first is None else max(held.first, await start_seq(log, stream, first))
    end = held.last if last is None else min(held.last, await end_seq(log, stream, last))
    return Range(begin, max(end, begin - 1))


async def _time_of(log: LogPort, point: Point | None) -> Point | None:
    """A point of the facts as a moment, for the other stream counts for itself."""
    if point is None or point.seq is None:
        return point
    found = await first_from(log, FACTS_STREAM, point.seq)
    return Point(time_ms=found.stored_ms) if found is not None else None


def _print(done: Exported | Traced) -> None:
    render.line(f"{done.file}: {render.size(done.bytes)}")
    if isinstance(done, Traced):
        render.line(f"  {done.messages:,} messages drawn; open it at ui.perfetto.dev")
        return
    for stream, count in done.messages.items():
        span = done.ranges[stream]
        where = f", sequences {span.first} to {span.last}" if count else ""
        render.line(f"  {stream}: {count:,} messages{where}")
    if done.stripped:
        render.line("  names and hashes were replaced, free text left out")
    if done.left_out:
        render.line(f"  {done.left_out:,} messages could not be read and were left out")
    if done.state == "unknown":
        render.line("  what came before is not known: the ledger's own beginning is gone")
