"""``kvferry bench plan``."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kvferry.bench.children import answer_of, child
from kvferry.bench.history.shape import Shape
from kvferry.bench.history.talks import History
from kvferry.bench.ledgers import store, temporary_ledger
from kvferry.bench.plan.asker import READY_WAIT_S, Asked, Order
from kvferry.bench.results import JsonFile, percentile, publish
from kvferry.errors import KVFerryError
from kvferry.files import check_writable
from kvferry.ids import SAMPLE_TOKENS, SHORT_BYTES
from kvferry.ledger.jetstream import JetStreamLedger

ASKER = "kvferry.bench.plan.asker"
SLACK_S = 60.0
DEADLINE_MS = 40.0
"""What a node waits for an answer; see :class:`kvferry.node.agent.settings.NodeSettings`."""


def command(
    plans_per_s: Annotated[
        float, typer.Option("--plans-per-s", min=1.0, help="Asked for, over all nodes.")
    ] = 1_000.0,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="For so long.")] = 10.0,
    warm_s: Annotated[
        float, typer.Option("--warm-s", min=0.0, help="Asked before, and not counted.")
    ] = 2.0,
    hashes: Annotated[
        int,
        typer.Option("--hashes", min=8, help="Sampled hashes of a prompt, one per 128 tokens."),
    ] = 512,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Processes that the asking nodes share.")
    ] = 2,
    askers: Annotated[
        int, typer.Option("--askers", min=1, help="Asking nodes of each process.")
    ] = 4,
    nodes: Annotated[
        int, typer.Option("--nodes", min=2, help="Nodes that hold something, an even number.")
    ] = 8,
    events: Annotated[
        int, typer.Option("--events", min=1, help="Block events in the ledger beforehand.")
    ] = 1_000_000,
    store_folder: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Keep the temporary ledger below this folder."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure plans under load: nats-server, coordinator and asking nodes in separate processes.

    Asks come at random (exponential pauses), whatever becomes of those before. A half of the
    prompts is held as a whole by some node, a quarter up to somewhere, a quarter nowhere. The time
    is from a node's ask to its answer, as an engine sees it: 512 hashes are 4 KB on the wire.

    Examples:

      kvferry bench plan

      kvferry bench plan --plans-per-s 2000 --processes 4 --json plan.json
    """
    check_writable(json_file)
    shape = Shape(
        nodes=nodes,
        first_tokens=hashes * SAMPLE_TOKENS,
        turns=2,
        pool_blocks=max(40_960, 8 * hashes * SAMPLE_TOKENS // 16),
    )
    order = Order(
        url="",
        coordinator_pid=0,
        names=(),
        chains_file="",
        hashes=hashes,
        block_size=shape.block_size,
        plans_per_s=plans_per_s / processes,
        warm_s=warm_s,
        seconds=seconds,
        seed=0,
    )
    figures = asyncio.run(_measure(shape, events, order, processes, askers, store_folder))
    publish(f"{plans_per_s:g} plans a second for {seconds:g} s", figures, json_file)


async def _measure(
    shape: Shape, events: int, order: Order, processes: int, askers: int, folder: Path | None
) -> dict[str, Any]:
    history = History(shape)
    async with temporary_ledger(folder) as ledger:
        typer.echo(f"writing {events:,} block events", err=True)
        await store(ledger, history.join())
        await store(ledger, history.until(events))
        with tempfile.NamedTemporaryFile(prefix="kvferry-bench-") as chains:
            size = order.hashes * SHORT_BYTES
            held = [chain[:size] for chain in history.held() if len(chain) >= size]
            if not held:
                raise KVFerryError("no conversation is held as a whole: raise --events")
            chains.write(b"".join(held))
            chains.flush()
            async with _coordinator(ledger) as pid:
                typer.echo("asking", err=True)
                asked = await asyncio.gather(
                    *(
                        _ask(
                            msgspec.structs.replace(
                                order,
                                url=ledger.url,
                                chains_file=chains.name,
                                coordinator_pid=pid,
                                seed=number + 1,
                                names=tuple(f"a{number}-{one}" for one in range(askers)),
                            )
                        )
                        for number in range(processes)
                    )
                )
    return _sum_up(asked) | {
        "hash_bytes": size,
        "asking_processes": processes,
        "asking_nodes": processes * askers,
        "holding_nodes": shape.nodes,
        "held_chains": len(held),
    }


async def _ask(order: Order) -> Asked:
    wait_s = READY_WAIT_S + order.warm_s + order.seconds + SLACK_S
    answer = await answer_of(ASKER, msgspec.json.encode(order).decode(), wait_s=wait_s)
    return msgspec.json.decode(answer, type=Asked)


@contextlib.asynccontextmanager
async def _coordinator(ledger: JetStreamLedger) -> AsyncIterator[int]:
    """A coordinator as operators run it; its process id. Nobody is given up: the holding nodes
    are history and send no heartbeats."""
    arguments = ("coordinator", "--nats", ledger.url, "--silent-after-s", "3600")
    async with child("kvferry.cli", *arguments) as process:
        yield process.pid
        if process.returncode is not None:
            raise KVFerryError(f"the coordinator ended with code {process.returncode}")


def _sum_up(asked: list[Asked]) -> dict[str, Any]:
    took = sorted(one for each in asked for one in each.took_ms)
    if not took:
        raise KVFerryError(f"no plan was answered: {[one.misses for one in asked]}")
    misses: dict[str, int] = {}
    for each in asked:
        for why, count in each.misses.items():
            misses[why] = misses.get(why, 0) + count
    total = sum(one.asked for one in asked)
    plans_per_s = sum(len(one.took_ms) / one.span_s for one in asked)
    coordinator_share = statistics.mean(one.coordinator_cpu_s / one.span_s for one in asked)
    return {
        "plan_ms_p50": round(percentile(took, 0.50), 3),
        "plan_ms_p99": round(percentile(took, 0.99), 3),
        "plan_ms_p999": round(percentile(took, 0.999), 3),
        "plan_ms_max": round(took[-1], 3),
        "plans_per_s": round(plans_per_s, 1),
        "asked": total,
        "unanswered": total - len(took),
        "beyond_deadline": sum(one > DEADLINE_MS for one in took),
        "candidates": len(took) - misses.get("nothing_held", 0) - misses.get("too_dear", 0),
        "misses": misses,
        "asking_late_ms_p99": round(max(one.late_ms_p99 for one in asked), 3),
        "asking_cpu_share": round(sum(one.cpu_s / one.span_s for one in asked), 3),
        "coordinator_cpu_share": round(coordinator_share, 3),
        "coordinator_us_per_plan": round(1e6 * coordinator_share / plans_per_s),
    }
