"""`kvferry doctor`: is everything as it should be, and if not, what to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import typer

from kvferry.cli import guard, replicas
from kvferry.cli.checks import local, nodes
from kvferry.cli.checks.beats import beating
from kvferry.cli.checks.coordinator import check_coordinator, check_record
from kvferry.cli.checks.finding import FAIL, OK, WARN, Finding, fail, ok
from kvferry.cli.checks.keeping import check_keeping, in_force_by_node
from kvferry.cli.checks.server import check_server
from kvferry.cli.context import Target, find_ledger, open_ledger
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import JsonOption, NatsOption
from kvferry.errors import LedgerError
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.fold import fold_to


class Examined(msgspec.Struct):
    """What was found."""

    findings: list[Finding]
    reached: bool = False
    """The ledger answered."""
    keeps: dict[str, Any] = {}
    """By space and node how each keeps."""


COLOURS = {OK: typer.colors.GREEN, WARN: typer.colors.YELLOW, FAIL: typer.colors.RED}


@guard.guarded
def command(nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """Check the ledger, the coordinator, the engines and this machine.

    Says of each whether it is ok, and if not what to do; and which retention settings are in
    force on each engine (`kvferry policy` sets them). Ends with code 1 when a check fails,
    with code 3 when the ledger cannot be reached.

    Examples:

      kvferry doctor

      kvferry doctor --nats nats://10.0.0.7:4222 --json
    """
    target = find_ledger(nats)
    found = guard.run(_examine(target))
    findings, reached = found.findings, found.reached
    levels = Counter(one.level for one in findings)
    if as_json:
        print_document(
            {
                "url": target.shown,
                "ok": not levels[FAIL],
                "levels": levels,
                "checks": findings,
                "keeps": found.keeps,
            }
        )
    else:
        _print(findings, levels)
    if not reached:
        raise typer.Exit(guard.UNREACHABLE)
    if levels[FAIL]:
        raise typer.Exit(guard.TROUBLE)


async def _examine(target: Target) -> Examined:
    found = Examined([local.check_key(local.key_file())])
    findings = found.findings
    try:
        async with open_ledger(target) as ledger:
            findings.append(ok("nats", f"{target.shown} answers (from {target.origin})"))
            findings += await check_server(ledger)
            if not any(one.level == FAIL and one.check != "key file" for one in findings):
                await _examine_ledger(ledger, found)
    except LedgerError as error:
        text, _, cure = str(error).partition("\ncure: ")
        findings.append(fail("nats", text, cure or target.cure))
        return found
    found.reached = True
    return found


async def _examine_ledger(ledger: JetStreamLedger, found: Examined) -> None:
    last = (await ledger.bounds(FACTS_STREAM)).last
    state = await fold_to(ledger)
    here = nodes.joined(state)
    coordinators, beats, peers = await asyncio.gather(
        replicas.heard(ledger),
        beating(ledger, {(node.name, node.incarnation) for node in here}),
        local.check_peers((node.name, node.address) for node in here),
    )
    found.findings += [
        *check_coordinator(coordinators, last),
        *nodes.check_nodes(state, beats),
        *nodes.check_spaces(state),
        *check_keeping(state),
        *peers,
        *check_record(state),
    ]
    found.keeps = in_force_by_node(state)


def _print(findings: list[Finding], levels: Counter[str]) -> None:
    for one in findings:
        mark = typer.style(f"{one.level:<4}", fg=COLOURS[one.level])
        typer.echo(f"{mark}  {one.check}: {one.text}")
        if one.cure:
            typer.echo(f"      cure: {one.cure}")
    typer.echo(f"\n{levels[OK]} ok, {levels[WARN]} to look at, {levels[FAIL]} failed")
