"""A coordinator's start in a process of its own: ``python -m kvferry.bench.rebuild.child URL HOW``.

``HOW`` is ``start`` (build the state from whatever the ledger has, as a coordinator does) or
``write`` (that, and leave a snapshot). Prints one :class:`Started` as JSON.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time

import msgspec

from kvferry.core.digest import digest
from kvferry.daemon.projector import Projector
from kvferry.daemon.serving import run_serving
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.snapshots import write_snapshot

START, WRITE = "start", "write"
WAIT_S = 600.0
KEEP_MAX = 2


class Started(msgspec.Struct, kw_only=True):
    """What one start took and came to."""

    took_s: float
    """From connecting to the ledger until state and index are at its end."""
    cpu_s: float
    """Of this process, meanwhile."""
    position: int
    digest: str
    offers: int
    held_blocks: int
    samples: int
    """Distinct sampled hashes in the index, summed over the nodes."""
    peak_rss_mib: int
    write_s: float = 0.0


async def start(url: str, how: str) -> Started:
    """Do what a coordinator does when it starts, and tell."""
    begun, cpu = time.perf_counter(), time.process_time()
    ledger = await connect(url, name="kvferry-bench-start")
    projector = Projector(ledger, ledger)
    running = asyncio.create_task(projector.run())
    try:
        last = (await ledger.bounds(FACTS_STREAM)).last
        await projector.reached(last, WAIT_S)
        took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
        write_s = await _write(ledger, projector) if how == WRITE else 0.0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ledger.close()
    state = projector.state
    return Started(
        took_s=took_s,
        cpu_s=cpu_s,
        write_s=write_s,
        position=state.position,
        digest=digest(state),
        offers=sum(len(space.offers) for space in state.spaces.values()),
        held_blocks=sum(
            offer.count for space in state.spaces.values() for offer in space.offers.values()
        ),
        samples=sum(projector.index.space(name).samples() for name in state.spaces),
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )


async def _write(ledger: JetStreamLedger, projector: Projector) -> float:
    begun = time.perf_counter()
    first = (await ledger.bounds(FACTS_STREAM)).first
    stored_ms = projector.last_stored_ms
    await write_snapshot(ledger, projector.state, stored_ms, keep_max=KEEP_MAX, first=first)
    return time.perf_counter() - begun


def main() -> None:
    """Start, and print what came of it."""
    url, how = sys.argv[1:]
    sys.stdout.write(msgspec.json.encode(run_serving(start(url, how))).decode() + "\n")


if __name__ == "__main__":
    main()
