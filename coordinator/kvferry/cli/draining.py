"""`kvferry drain` and `undrain`: take a TileRT decode node out of the pool, and put it back."""

from __future__ import annotations

from typing import Annotated

import typer

from kvferry.cli import guard, replicas
from kvferry.cli.context import JsonOption, NatsOption, find_ledger, open_ledger
from kvferry.cli.jsonable import print_document
from kvferry.cli.slotview import standing
from kvferry.daemon.messages import Query
from kvferry.errors import LedgerUnavailable

NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="The decode node, as `kvferry status` lists it.")
]


@guard.guarded
def drain(node: NodeArgument, nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """Lend a TileRT decode node no more. A request that has it goes on to its end.

    Examples:

      kvferry drain t0                            then stop the node once it is free
    """
    guard.run(_set("drain", node, nats, as_json))


@guard.guarded
def undrain(node: NodeArgument, nats: NatsOption = None, as_json: JsonOption = False) -> None:
    """Lend a TileRT decode node again after `drain`.

    Examples:

      kvferry undrain t0
    """
    guard.run(_set("undrain", node, nats, as_json))


async def _set(verb: str, node: str, nats: str | None, as_json: bool) -> None:
    async with open_ledger(find_ledger(nats)) as ledger:
        alive = await replicas.heard(ledger)
        if not alive:
            raise LedgerUnavailable(
                "no coordinator is running, and only one may decide who gets a decode node\n"
                "cure: start one with `kvferry up` or `kvferry coordinator`"
            )
        answer = await replicas.ask(ledger, alive, Query(verb=verb, node=node, who=replicas.who()))
    if as_json:
        print_document(answer)
    if "error" in answer:
        if not as_json:
            guard.complain(str(answer["error"]))
        raise typer.Exit(guard.TROUBLE)
    if not as_json:
        already = "" if answer["changed"] else " already"
        for slot in answer["slots"]:
            state = "drained" if slot["drained"] else "in the pool"
            typer.echo(f"decode node {slot['node']} is{already} {state}: {standing(slot)}")
