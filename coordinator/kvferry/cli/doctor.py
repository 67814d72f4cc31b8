"""`kvferry doctor`: is everything as it should be, and if not, what to do."""

from __future__ import annotations

import asyncio
from collections import Counter

import typer

from kvferry.cli import guard, replicas
from kvferry.cli.checks import local, nodes
from kvferry.cli.checks.beats import beating
from kvferry.cli.checks.coordinator import check_coordinator, check_record
from kvferry.cli.checks.finding import FAIL, OK, WARN, Finding, fail, ok
from kvferry.cli.checks.server import check_server
from kvferry.cli.context import Target, find_ledger, open_ledger
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import JsonOption, NatsOption
from kvferry.errors import LedgerError
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.fold import fold_to

COLOURS = {OK: typer.colors.GREEN, WARN: typer.colors.YELLOW, FAIL: typer.colors.RED}


@guard.guarded
def command(nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """Check the ledger, the coordinator, the engines and this machine.

    Says of each whether it is ok, and if not what to do. Ends with code 1 when a check fails,
    with code 3 when the ledger cannot be reached.

    Examples:

      kvferry doctor

      kvferry doctor --nats nats://10.0.0.7:4222 --json
    """
    target = find_ledger(nats)
    findings, reached = guard.run(_examine(target))
    levels = Counter(one.level for one in findings)
    if as_json:
        print_document(
            {"url": target.shown, "ok": not levels[FAIL], "levels": levels, "checks": findings}
        )
    else:
        _print(findings, levels)
    if not reached:
        raise typer.Exit(guard.UNREACHABLE)
    if levels[FAIL]:
        raise typer.Exit(guard.TROUBLE)


async def _examine(target: Target) -> tuple[list[Finding], bool]:
    findings = [local.check_key(local.key_file())]
    try:
        async with open_ledger(target) as ledger:
            findings.append(ok("nats", f"{target.shown} answers (from {target.origin})"))
            findings += await check_server(ledger)
            if not any(one.level == FAIL and one.check != "key file" for one in findings):
                findings += await _examine_ledger(ledger)
    except LedgerError as error:
        text, _, cure = str(error).partition("\ncure: ")
        findings.append(fail("nats", text, cure or target.cure))
        return findings, False
    return findings, True


async def _examine_ledger(ledger: JetStreamLedger) -> list[Finding]:
    last = (await ledger.bounds(FACTS_STREAM)).last
    state = await fold_to(ledger)
    here = nodes.joined(state)
    coordinators, beats, peers = await asyncio.gather(
        replicas.heard(ledger),
        beating(ledger, {(node.name, node.incarnation) for node in here}),
        local.check_peers((node.name, node.address) for node in here),
    )
    findings = check_coordinator(coordinators, last)
    findings += nodes.check_nodes(state, beats)
    findings += nodes.check_spaces(state)
    findings += peers
    findings += check_record(state)
    return findings


def _print(findings: list[Finding], levels: Counter[str]) -> None:
    for one in findings:
        mark = typer.style(f"{one.level:<4}", fg=COLOURS[one.level])
        typer.echo(f"{mark}  {one.check}: {one.text}")
        if one.cure:
            typer.echo(f"      cure: {one.cure}")
    typer.echo(f"\n{levels[OK]} ok, {levels[WARN]} to look at, {levels[FAIL]} failed")
