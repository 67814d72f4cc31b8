"""`kvferry whatif`: what another policy would have made of what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import guard
from kvferry.cli.context import find_ledger, open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import FileOption, JsonOption, NatsOption
from kvferry.cli.progress import progress
from kvferry.cli.ranges import FromOption, ToOption, parse_ends, seqs
from kvferry.cli.times import Point
from kvferry.cli.whatifoptions import parse_policy
from kvferry.cli.whatifview import show
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.whatif.policy import Policy
from kvferry.replay.whatif.report import Report
from kvferry.replay.whatif.run import whatif

_SIZES = "bytes, as 64GB, 512MB or a plain number"


@guard.guarded
def command(
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl",
            metavar="SECONDS",
            help="How long a lease lasts (the connector's lease_ms); 0 leases nothing.",
            show_default=False,
        ),
    ] = None,
    lease_budget: Annotated[
        str | None,
        typer.Option(
            "--lease-budget",
            metavar="SHARE",
            help="Share of each pool that leases may hold, as 0.2 or 20%.",
            show_default=False,
        ),
    ] = None,
    free_watermark: Annotated[
        str | None,
        typer.Option(
            "--free-watermark",
            metavar="SHARE",
            help="Leases end while fewer blocks than this share of the pool are free.",
            show_default=False,
        ),
    ] = None,
    retain_max: Annotated[
        str | None,
        typer.Option(
            "--retain-max",
            metavar="SECONDS",
            help="For how long a request may have its blocks leased at most (the connector's "
            "retain_max_ms); 0 lets none ask.",
            show_default=False,
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            metavar="FACTOR",
            help="Every engine's KV blocks relative to what it has, as 0.5x or 2x.",
            show_default=False,
        ),
    ] = None,
    host_tier: Annotated[
        str | None,
        typer.Option(
            "--host-tier",
            metavar="BYTES|off",
            help=f"Host memory of every engine for KV: {_SIZES}, or off.",
            show_default=False,
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            "--threshold",
            metavar="MS",
            help="Pull only what is predicted to save at least so many milliseconds.",
            show_default=False,
        ),
    ] = None,
    min_pull_tokens: Annotated[
        str | None,
        typer.Option(
            "--min-pull-tokens",
            metavar="TOKENS",
            help="Pull no fewer tokens (the connector's min_pull_tokens).",
            show_default=False,
        ),
    ] = None,
    link_rate: Annotated[
        list[str] | None,
        typer.Option(
            "--link-rate",
            metavar="SRC:DST=GB/S|FACTOR",
            help="Rate of the link between two nodes, as p0:d1=12.5 (may be repeated), or a "
            "factor for all links, as 0.5x.",
            show_default=False,
        ),
    ] = None,
    extra_decode: Annotated[
        str | None,
        typer.Option(
            "--extra-decode",
            metavar="N",
            help="So many decode nodes more, each like one that there is.",
            show_default=False,
        ),
    ] = None,
    recorded_cost: Annotated[
        str,
        typer.Option(
            "--recorded-cost",
            metavar="learned|off",
            help="How the coordinator was started (its --cost), for stretches of a ledger that do "
            "not say: those that older versions led.",
        ),
    ] = "learned",
    begin: FromOption = None,
    end: ToOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Forecast even where fewer than 99 % of the recorded decisions are reproduced.",
        ),
    ] = False,
    nats: NatsOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide history again under another policy: what would it have cost, what saved?

    First every recorded decision is decided again under the policy in force, by the code that
    decided: where it stood in the ledger, with what was known there. Below 99 % nothing is
    compared (code 1), and the kinds that differ are named with their reason.

    Then the ledger's requests run through simulated nodes twice, under the recorded policy and
    under yours. What differs between the two is applied to what was measured: tokens computed and
    computed again, bytes moved, TTFT p50, p95 and p99. The band says how far off the forecast may
    be: by what the simulation of the recorded policy misses, and for times by the median error of
    the predictions that the ledger holds.

    Assumed is that requests come and end when they did (no queues), that each engine keeps by the
    shipped retention policy, and that links and engines are as fast as the ledger had taught by
    then; the output lists all that was assumed. Without an option for a policy only the recorded
    decisions are checked. Needs no coordinator.

    Examples:

      kvferry whatif --ttl 120 --free-watermark 2% --retain-max 60

      kvferry whatif --host-tier 64GB --lease-budget 20% --file monday.kvf --json

      kvferry whatif --link-rate 0.5x --from -1d

      kvferry whatif --link-rate d0:p0=2.5 --extra-decode 1
    """
    policy = parse_policy(
        ttl=ttl,
        lease_budget=lease_budget,
        free_watermark=free_watermark,
        retain_max=retain_max,
        pool=pool,
        host_tier=host_tier,
        threshold=threshold,
        min_pull_tokens=min_pull_tokens,
        link_rates=link_rate or [],
        extra_decode=extra_decode,
        recorded_cost=recorded_cost,
    )
    first, last = parse_ends(begin, end)
    report = guard.run(_whatif(nats, file, policy, first, last, force=force))
    if as_json:
        print_document(report)
    else:
        show(report)
    if not report.enough:
        if not force:
            guard.complain(
                "too few of the recorded decisions are reproduced to forecast another policy; "
                "--force does it all the same"
            )
        raise typer.Exit(guard.TROUBLE)


async def _whatif(
    nats: str | None,
    file: Path | None,
    policy: Policy,
    first: Point | None,
    last: Point | None,
    *,
    force: bool,
) -> Report:
    of = f"the file {file.name}" if file is not None else f"the ledger {find_ledger(nats).shown}"
    async with open_log(nats, file) as log:
        begin, end = await seqs(log, FACTS_STREAM, first, last)
        with progress("deciding again") as report:
            return await whatif(
                log, policy, of, first=begin, last=end, force=force, progress=report
            )
