"""`kvferry policy`: how nodes keep, shown and set while engines run."""

from __future__ import annotations

from typing import Annotated

import typer

from kvferry.cli import guard, replicas
from kvferry.cli.context import find_ledger
from kvferry.cli.jsonable import print_document
from kvferry.cli.keepview import FLAGS, print_policy
from kvferry.cli.options import JsonOption, NatsOption
from kvferry.cli.ordering import order
from kvferry.cli.policy import NodeOption, SpaceOption
from kvferry.cli.quantities import parse_number, parse_share
from kvferry.cli.status import collect
from kvferry.core.retention_settings import (
    AS_STARTED,
    KEEP_MS_MAX,
    SHARE_MAX,
    RetentionSettings,
    in_words,
)
from kvferry.daemon.messages import Answer, Query
from kvferry.errors import ConfigError

DEFAULT = "default"
_OR_DEFAULT = f"or `{DEFAULT}`"


def _option(flag: str, metavar: str, text: str) -> typer.models.OptionInfo:
    made: typer.models.OptionInfo = typer.Option(
        flag, metavar=f"{metavar}|{DEFAULT}", help=text, show_default=False
    )
    return made


@guard.guarded
def command(
    ttl: Annotated[
        str | None,
        _option("--ttl", "SECONDS", "How long a lease lasts (lease_ms); 0 leases nothing."),
    ] = None,
    lease_budget: Annotated[
        str | None,
        _option(
            "--lease-budget",
            "SHARE",
            "Share of a node's KV blocks that leases may hold (lease_budget), as 0.2 or 20%, up "
            "to 90%; 0 leases nothing.",
        ),
    ] = None,
    free_watermark: Annotated[
        str | None,
        _option(
            "--free-watermark",
            "SHARE",
            "Leases end while fewer blocks than this share of the pool are free (free_watermark).",
        ),
    ] = None,
    retain_max: Annotated[
        str | None,
        _option(
            "--retain-max",
            "SECONDS",
            "For how long a request may have its blocks leased at most (retain_max_ms); 0 lets "
            "none ask.",
        ),
    ] = None,
    host_budget: Annotated[
        str | None,
        _option(
            "--host-budget",
            "SHARE",
            "Share of a node's host tier (host_tier_bytes) that may be in use; 0 empties it.",
        ),
    ] = None,
    space: SpaceOption = "",
    node: NodeOption = "",
    nats: NatsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how each node keeps blocks, or set it while engines run.

    Without a setting the policy in force is shown: what an operator has set, marked with *, and
    the rest as each engine was started. Works without a coordinator.

    What is set is a decision of the leader in the ledger, and in force on every node within a
    second or so, on an idle engine with its next step. It outlives restarts of engines and
    coordinators. A setting for the whole space takes the place of what single nodes had of their
    own. `default` takes a setting back: a node then keeps as its space says, a space as each
    engine was started. Leases that are over a lower budget end, least value first and not while
    they are read; leases that stand keep their time, and are renewed for the new one.

    `kvferry pause`, `observe` and `resume` switch reuse off and on.

    Examples:

      kvferry policy                              what is in force

      kvferry policy --ttl 120 --lease-budget 20%

      kvferry policy --node d0 --lease-budget 0   lease nothing on d0

      kvferry policy --ttl default --space qwen3-8b-1f0c2d3e4a5b
    """
    given: dict[str, float] = {}
    unset: list[str] = []
    for name, text in (
        ("lease_ms", ttl),
        ("retain_max_ms", retain_max),
        ("lease_budget", lease_budget),
        ("free_watermark", free_watermark),
        ("host_budget", host_budget),
    ):
        if text is None:
            continue
        if text.strip().lower() == DEFAULT:
            unset.append(name)
        else:
            given[name] = _value(name, FLAGS[name], text)
    if given or unset:
        query = Query(
            verb="keep",
            space=space,
            node=node,
            who=replicas.who(),
            settings=RetentionSettings(**given),  # type: ignore[arg-type]
            unset=tuple(unset),
        )
        guard.run(_set(query, nats, as_json))
    else:
        guard.run(_show(space, node, nats, as_json))


def _value(name: str, option: str, text: str) -> float:
    try:
        if name.endswith("_ms"):
            seconds = parse_number(option, text, KEEP_MS_MAX / 1_000, "seconds")
            return round(1_000 * seconds)
        most = 1.0 if name == "host_budget" else SHARE_MAX
        of = "the host tier" if name == "host_budget" else "a pool"
        return parse_share(option, text, most, of)
    except ConfigError as error:
        raise ConfigError(f"{error}, {_OR_DEFAULT}") from error


async def _set(query: Query, nats: str | None, as_json: bool) -> None:
    await order(
        query,
        nats,
        as_json,
        nobody="so nobody can set a policy; engines keep the one they have",
        lines=lines,
    )


async def _show(space: str, node: str, nats: str | None, as_json: bool) -> None:
    document = await collect(find_ledger(nats))
    spaces = _only(document["spaces"], space, node)
    if as_json:
        print_document({"source": document["source"], "spaces": spaces})
        return
    if not spaces:
        typer.echo("no node has joined yet, so there is no policy; start an engine first")
    for name, one in spaces.items():
        print_policy(name, one)


def _only(spaces: Answer, space: str, node: str) -> Answer:
    """What is asked for, and of each space what its policy is."""
    if space and space not in spaces:
        known = ", ".join(spaces) or "none yet; start an engine first"
        raise ConfigError(f"--space {space}: there is no such space; known spaces: {known}")
    found = {}
    for name, one in spaces.items():
        nodes = [
            {key: each[key] for key in ("name", "status", "mode", "blocks", "host_blocks", "keeps")}
            for each in one["nodes"]
            if node in ("", each["name"])
        ]
        if space in ("", name) and (nodes or not node):
            kept = ("mode", "modes", "retention", "retentions", "policy_version")
            found[name] = {key: one[key] for key in kept} | {"nodes": nodes}
    if node and not found:
        known = ", ".join(sorted({n["name"] for one in spaces.values() for n in one["nodes"]}))
        raise ConfigError(f"--node {node}: there is no such node; known nodes: {known or 'none'}")
    return found


def lines(answer: Answer) -> list[str]:
    """What is now set and how nodes keep by it, a line for each space and each node."""
    said = []
    for one in answer["set"]:
        where = f"space {one['space']}" + (f", node {one['node']}" if one["node"] else "")
        given = RetentionSettings(**one["retention"])
        what = in_words(given) if given != AS_STARTED else "every engine keeps as it was started"
        said.append(f"{where}:{'' if one['changed'] else ' already'} {what}")
        said += [f"  {name}: {_now(now)}" for name, now in one["keeps"].items()]
        if not one["keeps"]:
            said.append("  no node is joined now; it holds for those that join")
    return said


def _now(now: Answer) -> str:
    """How a node keeps from now on."""
    said = "leases nothing"
    if now["lease_ms"]:
        said = f"leases for {now['lease_ms'] / 1_000:g} s in {now['lease_blocks']:,} blocks"
    return f"{said}, {now['host_blocks']:,} blocks of host tier" if now["host_blocks"] else said
