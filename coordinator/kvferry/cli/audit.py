"""`kvferry audit`: does the ledger keep its promises?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvferry.cli import guard
from kvferry.cli.auditview import show
from kvferry.cli.context import find_ledger, open_ledger, open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import FileOption, JsonOption, NatsOption
from kvferry.cli.progress import progress
from kvferry.cli.ranges import FromOption, ToOption, parse_ends, seqs
from kvferry.cli.times import Point
from kvferry.errors import ConfigError
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.audit.live.run import LiveAudit, LiveReport
from kvferry.replay.audit.run import PATIENCE_MS, Audit, audit
from kvferry.replay.reading import facts_within


@guard.guarded
def command(
    begin: FromOption = None,
    end: ToOption = None,
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience-s",
            min=0,
            metavar="SECONDS",
            help="What has been open for less than this at the end may still be under way.",
        ),
    ] = PATIENCE_MS / 1000,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Also ask each living node what it holds, and compare that with the ledger at the "
            "same event of its record.",
        ),
    ] = False,
    nats: NatsOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the invariants of the ledger over a range; code 1 if any is broken.

    Checked are: no event is missing from any lane without a declared gap; a request's local,
    pulled and computed tokens are its prompt; every request, transfer, pin and lease ends, once;
    what arrived was granted, and was used only if its source said so; a term has one leader; all
    messages can be read; no prediction is impossible; and the folded state is sound. Beside that
    it says how far off predictions were, what decisions cost that hindsight calls wrong, and which
    leases outlast what `kvferry policy` has set; that breaks nothing. Needs no coordinator.

    With --live each node is asked for its offers, leases, transfers and pins; and its engine, block
    by block, whether its cache still has each offered block under its hash, whether it holds what
    is leased, and what is in its host tier. What the ledger says otherwise is a violation. A node
    that does not answer is named, and breaks nothing by itself.

    Examples:

      kvferry audit

      kvferry audit --from -1d --json

      kvferry audit --live

      kvferry audit --file monday.kvf
    """
    if live and file is not None:
        raise ConfigError("--live asks nodes and --file reads a file: leave one of them out")
    first, last = parse_ends(begin, end)
    done = guard.run(_audit(nats, file, first, last, round(patience_s * 1000)))
    lives = guard.run(_ask(nats)) if live else None
    if lives is not None:
        done = msgspec.structs.replace(done, violations=(*done.violations, *lives.findings))
    if as_json:
        print_document({**msgspec.structs.asdict(done), "live": lives})
    else:
        show(done, lives)
    if done.violations:
        raise typer.Exit(guard.TROUBLE)


async def _audit(
    nats: str | None, file: Path | None, first: Point | None, last: Point | None, patience_ms: int
) -> Audit:
    async with open_log(nats, file) as log:
        begin, end = await seqs(log, FACTS_STREAM, first, last)
        await facts_within(log, begin, end)
        with progress("auditing") as report:
            return await audit(log, first=begin, last=end, patience_ms=patience_ms, progress=report)


async def _ask(nats: str | None) -> LiveReport:
    async with open_ledger(find_ledger(nats)) as ledger:
        with progress("asking nodes") as report:
            return await LiveAudit(ledger, ledger).run(report)
