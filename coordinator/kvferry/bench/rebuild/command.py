"""``kvferry bench rebuild``."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kvferry.bench.children import answer_of
from kvferry.bench.history.shape import Shape
from kvferry.bench.history.talks import History
from kvferry.bench.ledgers import store, temporary_ledger
from kvferry.bench.rebuild.child import START, WAIT_S, WRITE, Started
from kvferry.bench.results import JsonFile, publish
from kvferry.errors import KVFerryError
from kvferry.files import check_writable
from kvferry.ledger.jetstream import JetStreamLedger

DEFAULT = Shape()
CHILD = "kvferry.bench.rebuild.child"


def command(
    events: Annotated[
        int, typer.Option("--events", min=1, help="Block events in the ledger.")
    ] = 2_300_000,
    runs: Annotated[
        int, typer.Option("--runs", min=1, max=100, help="Starts of each kind; the median counts.")
    ] = 3,
    nodes: Annotated[
        int, typer.Option("--nodes", help="Engines, half of them prefill.")
    ] = DEFAULT.nodes,
    first_tokens: Annotated[
        int, typer.Option("--first-tokens", help="Prompt of a conversation's first turn.")
    ] = DEFAULT.first_tokens,
    turn_tokens: Annotated[
        int, typer.Option("--turn-tokens", help="Tokens that every turn adds.")
    ] = DEFAULT.turn_tokens,
    turns: Annotated[int, typer.Option("--turns", help="Turns of a conversation.")] = DEFAULT.turns,
    pool_blocks: Annotated[
        int, typer.Option("--pool-blocks", help="KV blocks of each node, 16 tokens each.")
    ] = DEFAULT.pool_blocks,
    turns_per_look: Annotated[
        int,
        typer.Option(
            "--turns-per-look",
            help="Turns of a node whose facts share a message: an agent looks ten times a second.",
        ),
    ] = DEFAULT.turns_per_look,
    store_folder: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Keep the temporary ledger below this folder."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure how long a new coordinator takes to know all: by replay, and from a snapshot.

    Writes a history of conversations into a nats-server of its own, whose store is a temporary
    folder, then starts the coordinator's reading side in fresh processes. A start lasts from
    connecting to the ledger until state and index are at its end.

    A block event is one block that a node came to hold or gave up: what an engine that publishes
    single blocks would have sent. In the ledger they are runs: the facts of each turn, batched as
    the outbox and the agent batch them. Detail (the blocks lane, KVF_BLOCKS) is written too, but
    it is not part of a rebuild: what it takes stands under names that say detail.

    Examples:

      kvferry bench rebuild

      kvferry bench rebuild --events 10000000 --json rebuild.json
    """
    check_writable(json_file)
    shape = Shape(
        nodes=nodes,
        first_tokens=first_tokens,
        turn_tokens=turn_tokens,
        turns=turns,
        pool_blocks=pool_blocks,
        turns_per_look=turns_per_look,
    )
    figures = asyncio.run(_measure(shape, events, runs, store_folder))
    publish(f"a coordinator's start, {runs} of each kind", figures, json_file)


async def _measure(shape: Shape, events: int, runs: int, folder: Path | None) -> dict[str, Any]:
    history = History(shape)
    async with temporary_ledger(folder) as ledger:
        typer.echo(f"writing {events:,} block events", err=True)
        await store(ledger, history.join())
        await store(ledger, history.until(events))
        replays = await _starts(ledger, START, runs)
        (writer,) = await _starts(ledger, WRITE, 1)
        loads = await _starts(ledger, START, runs)
    _compare([*replays, writer, *loads])
    written = history.written
    replay_s = statistics.median(one.took_s for one in replays)
    return {
        "replay_s": round(replay_s, 3),
        "snapshot_s": round(statistics.median(one.took_s for one in loads), 3),
        "replay_runs_s": [round(one.took_s, 3) for one in replays],
        "snapshot_runs_s": [round(one.took_s, 3) for one in loads],
        "replay_cpu_s": round(statistics.median(one.cpu_s for one in replays), 3),
        "snapshot_cpu_s": round(statistics.median(one.cpu_s for one in loads), 3),
        "snapshot_write_s": round(writer.write_s, 3),
        "block_events": written.block_events,
        "facts": written.facts,
        "messages": written.messages,
        "bytes": written.bytes,
        "turns": written.turns,
        "block_events_per_s": round(written.block_events / replay_s),
        "facts_per_s": round(written.facts / replay_s),
        "bytes_per_block_event": round(written.bytes / written.block_events, 2),
        "detail": written.detail,
        "detail_bytes_per_block_event": round(written.detail_bytes / written.block_events, 2),
        "offers": writer.offers,
        "held_blocks": writer.held_blocks,
        "replay_peak_rss_mib": max(one.peak_rss_mib for one in replays),
        "snapshot_peak_rss_mib": max(one.peak_rss_mib for one in loads),
        "shape": msgspec.to_builtins(shape),
    }


async def _starts(ledger: JetStreamLedger, how: str, runs: int) -> list[Started]:
    """Starts in processes of their own, one after the other."""
    found = []
    for run in range(1, runs + 1):
        typer.echo(f"{how} {run} of {runs}", err=True)
        answer = await answer_of(CHILD, ledger.url, how, wait_s=2 * WAIT_S)
        found.append(msgspec.json.decode(answer, type=Started))
    return found


def _compare(starts: list[Started]) -> None:
    """All starts must come to one state, or what was measured is worth nothing."""
    states = {(one.position, one.digest, one.offers, one.samples) for one in starts}
    if len(states) != 1:
        raise KVFerryError(f"the starts came to different states: {sorted(states)}")
