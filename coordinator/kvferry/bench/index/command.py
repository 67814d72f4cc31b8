"""``kvferry bench index``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvferry.bench.index.contenders import OURS, OURS_EVERY_BLOCK, check_peer
from kvferry.bench.index.load import Plan
from kvferry.bench.index.run import run
from kvferry.bench.index.table import show
from kvferry.bench.results import JsonFile, write
from kvferry.errors import ConfigError
from kvferry.files import check_writable

DEFAULT = Plan()
ROUNDS_MAX = 50


def command(
    peer: Annotated[
        str,
        typer.Option(
            "--peer",
            metavar="dynamo",
            help="Also measure this index under the same load. Needs the extra bench.",
        ),
    ] = "",
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Also measure under a request trace in Mooncake's format (JSON lines).",
        ),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Engines.")] = DEFAULT.nodes,
    chains: Annotated[
        int, typer.Option("--chains", help="Conversations that grow side by side.")
    ] = DEFAULT.chains,
    chain_blocks: Annotated[
        int, typer.Option("--chain-blocks", help="Blocks of a conversation at its end.")
    ] = DEFAULT.chain_blocks,
    run_blocks: Annotated[
        int, typer.Option("--run-blocks", help="Blocks that each request adds to it.")
    ] = DEFAULT.run_blocks,
    pool_blocks: Annotated[
        int,
        typer.Option(
            "--pool-blocks",
            help="KV blocks of each node: what was used longest ago goes. 0: without bound.",
        ),
    ] = DEFAULT.pool_blocks,
    lookups: Annotated[
        int, typer.Option("--lookups", help="Questions that are timed.")
    ] = DEFAULT.lookups,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=ROUNDS_MAX, help="The least disturbed one counts.")
    ] = 5,
    json_file: JsonFile = None,
) -> None:
    """Measure the residency index: blocks taken in a second, time of a lookup, memory.

    Blocks have 16 tokens. Requests end on nodes, each adds blocks to its conversation; all of a
    conversation's blocks stay on its node, unless --pool-blocks makes it give some up. A lookup
    asks every node for the longest prefix of a whole conversation. Each index is told what its own
    engines would tell it, from the bytes of the event on, in a process of its own, by turns:

    ours: one run for each request that ended, with the hashes of the whole chain, one per 128
    tokens, and the end of the run that it covers. Answers are multiples of 128 tokens.

    ours_every_block: the same with every block's hash, for comparison; kvferry does not run so.

    peer: Dynamo's RadixTree through its Python binding (not its Rust service): one JSON event for
    each request with the hashes of the blocks that it added, or that left.

    Blocks are those that a node came to hold or gave up, whatever an event lists besides. Memory is
    the growth of the process (for ours what Python allocated, which is exact) by the blocks held at
    the end, counted on each node.

    Examples:

      kvferry bench index

      kvferry bench index --peer dynamo --trace conversation_trace.jsonl --json index.json
    """
    check_writable(json_file)
    version = check_peer(peer) if peer else ""
    plan = Plan(
        nodes=nodes,
        chains=chains,
        chain_blocks=chain_blocks,
        run_blocks=run_blocks,
        pool_blocks=pool_blocks,
        lookups=lookups,
    )
    plans = {"": plan}
    if trace is not None:
        if not trace.is_file():
            raise ConfigError(f"--trace {trace} is not a file: give a trace in Mooncake's format")
        plans["trace"] = Plan(
            nodes=nodes, pool_blocks=pool_blocks, lookups=lookups, trace=str(trace)
        )
    contenders = [OURS, OURS_EVERY_BLOCK, *([peer] if peer else [])]
    figures = asyncio.run(_measure(plans, contenders, rounds, peer, version))
    write(figures, json_file, lambda: show(figures))


async def _measure(
    plans: dict[str, Plan], contenders: list[str], rounds: int, peer: str, version: str
) -> dict[str, Any]:
    """The made load's figures at the top, those of the trace under its name."""
    figures: dict[str, Any] = {}
    for name, plan in plans.items():
        found = await run(plan, contenders, rounds, _say)
        if peer:
            found["peer"] = {"name": peer, "version": version} | found.pop(peer)
        if name:
            figures[name] = found
        else:
            figures |= found
    return figures


def _say(what: str) -> None:
    """Progress for people; nothing where nobody looks."""
    if sys.stderr.isatty():
        typer.echo(what, err=True)
