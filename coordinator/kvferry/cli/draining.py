"""`kvferry drain` and `undrain`: take a TileRT decode node out of the pool, and put it back."""

from __future__ import annotations

from typing import Annotated

import typer

from kvferry.cli import guard, replicas
from kvferry.cli.options import JsonOption, NatsOption
from kvferry.cli.ordering import order
from kvferry.cli.slotview import standing
from kvferry.daemon.messages import Answer, Query

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
    await order(
        Query(verb=verb, node=node, who=replicas.who()),
        nats,
        as_json,
        nobody="and only one may decide who gets a decode node",
        lines=_lines,
    )


def _lines(answer: Answer) -> list[str]:
    """What each decode node is now, and who has it."""
    already = "" if answer["changed"] else " already"
    said = []
    for slot in answer["slots"]:
        state = "drained" if slot["drained"] else "in the pool"
        said.append(f"decode node {slot['node']} is{already} {state}: {standing(slot)}")
    return said
