"""`kvferry pause`, `resume` and `observe`: the off-switch, without restarting an engine."""

from __future__ import annotations

from typing import Annotated

import typer

from kvferry.cli import guard, replicas
from kvferry.cli.options import JsonOption, NatsOption
from kvferry.cli.ordering import order
from kvferry.daemon.messages import Answer, Query

SpaceOption = Annotated[
    str,
    typer.Option("--space", metavar="SPACE", help="Only this space; without it every space."),
]
NodeOption = Annotated[
    str,
    typer.Option("--node", metavar="NODE", help="Only this node; without it every node."),
]
MEANING = {
    "paused": "leases drain, plans say recompute, nothing is pulled",
    "observe": "nothing is leased or pulled; what would have been done is recorded",
    "on": "reuse is in force",
}


@guard.guarded
def pause(
    space: SpaceOption = "",
    node: NodeOption = "",
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop reuse: leases drain and plans say recompute. Engines go on serving.

    Examples:

      kvferry pause                               everywhere

      kvferry pause --space qwen3-8b-1f0c2d3e4a5b

      kvferry pause --node d0
    """
    guard.run(_set("pause", space, node, nats, as_json))


@guard.guarded
def resume(
    space: SpaceOption = "",
    node: NodeOption = "",
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put reuse back in force after `pause` or `observe`.

    Examples:

      kvferry resume

      kvferry resume --node d0
    """
    guard.run(_set("resume", space, node, nats, as_json))


@guard.guarded
def observe(
    space: SpaceOption = "",
    node: NodeOption = "",
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lease and pull nothing, but record what would have been done.

    Examples:

      kvferry observe                             see what reuse would bring

      kvferry observe --space qwen3-8b-1f0c2d3e4a5b
    """
    guard.run(_set("observe", space, node, nats, as_json))


async def _set(verb: str, space: str, node: str, nats: str | None, as_json: bool) -> None:
    await order(
        Query(verb=verb, space=space, node=node, who=replicas.who()),
        nats,
        as_json,
        nobody=f"so nobody can {verb}; engines keep the policy they have",
        lines=lines,
    )


def lines(answer: Answer) -> list[str]:
    """What is now in force and on which nodes, a line for each space and each node."""
    said = []
    for one in answer["set"]:
        where = f"space {one['space']}" + (f", node {one['node']}" if one["node"] else "")
        already = "" if one["changed"] else " already"
        said.append(f"{where}:{already} {one['mode']} ({MEANING[one['mode']]})")
        said += [f"  {node}: {mode}" for node, mode in one["nodes"].items()]
        if not one["nodes"]:
            said.append("  no node is joined now; it holds for those that join")
    return said
