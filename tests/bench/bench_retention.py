"""What retention costs a crowd of short conversations on small pools, and what it brings them.

A prefill and a decode engine serve conversations, twelve turns at a time, whose second turns come
when many others have been in between. Batches take turns with retention on and off, in an order
drawn anew, on the same two engines. vLLM's own fixed retention of 480 s stops a decode engine for
minutes under such a load. Prints one JSON object: the ratio of turns per second, on to off, as the
median over all pairs with a 95 % bootstrap interval; the slowest turn; who waited for whose blocks;
what leases were for and how they ended; where the prefill engine's prompt tokens came from.

Run: ``python -m tests.bench.bench_retention [--rounds 10] [--conversations 24]``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.crowd import Crowd, Seen
from tests.bench.intervals import ratio
from tests.e2e.conftest import BLOCK, KEY, joined
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane

from kvferry_connectors.demo.model import TINY, ensure_model

BLOCK_BYTES = BLOCK * 1024
AT_ONCE = 12
PROMPT = (100, 900)
ANSWER = 32
TURNS = 2
ARMS = ("on", "off")


def run(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Both arms on one pair of engines."""
    model = ensure_model(folder / "model", TINY)
    (own := folder / "plane").mkdir()
    plane = Plane(own)
    engines: list[EngineProcess] = []
    pool = {"kv_cache_memory_bytes": given.blocks * BLOCK_BYTES, "max_model_len": 2048}
    try:
        plane.start_coordinator()
        for name in ("p0", "d0"):
            own_options = {"nats_url": plane.url, "key": KEY}
            engines.append(EngineProcess(model, name, connector=own_options, **pool))
        joined(*engines)
        return measured(engines, given)
    finally:
        for engine in engines:
            engine.stop()
        plane.stop()


def measured(engines: list[EngineProcess], given: argparse.Namespace) -> dict[str, Any]:
    """Rounds of one batch per arm."""
    crowd, draw = Crowd(*engines), random.Random(2)
    batch = {"at_once": AT_ONCE, "turns": TURNS, "prompt": PROMPT, "answer": ANSWER}
    crowd.run(AT_ONCE, **batch)  # Warm up, and fill the pools.
    for engine in engines:
        engine.ask("watch")
    seen: dict[str, list[Seen]] = {arm: [] for arm in ARMS}
    waits: dict[str, dict[str, int]] = {arm: {} for arm in ARMS}
    for _ in range(given.rounds):
        for arm in draw.sample(ARMS, len(ARMS)):
            for engine in engines:
                engine.ask("leasing", arm == "on")
            before = counted(engines)
            seen[arm].append(crowd.run(given.conversations, **batch))
            for what, count in counted(engines).items():
                waits[arm][what] = waits[arm].get(what, 0) + count - before[what]
    rates = [
        (on.turns / on.took_s) / (off.turns / off.took_s)
        for on, off in zip(seen["on"], seen["off"], strict=True)
    ]
    middle, bounds = ratio([rates])
    return {
        "bench": "retention",
        "conversations": 2 * given.rounds * given.conversations,
        "at_once": AT_ONCE,
        "blocks": given.blocks,
        "cpus": os.cpu_count(),
        "throughput_ratio": middle,
        "throughput_ratio_95": bounds,
        "arms": {arm: told(seen[arm], waits[arm]) for arm in ARMS},
        "leases": {
            engine.name: dict(zip(("begun", "ended"), engine.ask("leased"), strict=True))
            for engine in engines
        },
        "in_the_way": max(engine.ask("waits").in_the_way for engine in engines),
    }


def counted(engines: list[EngineProcess]) -> dict[str, int]:
    """Allocations that found no room, over both engines."""
    waits = [engine.ask("waits") for engine in engines]
    return {
        "refused": sum(one.refused for one in waits),
        "preempted": sum(one.preempted for one in waits),
    }


def told(seen: list[Seen], waits: dict[str, int]) -> dict[str, Any]:
    """One arm."""
    tokens = {source: sum(one.tokens[source] for one in seen) for source in seen[0].tokens}
    whole = sum(tokens.values())
    return {
        "turns_per_s": round(sum(s.turns for s in seen) / sum(s.took_s for s in seen), 3),
        "slowest_turn_s": round(max(one.slowest_s for one in seen), 3),
        **waits,
        "tokens": {source: round(count / whole, 4) for source, count in tokens.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="batches of each arm, >= 3")
    parser.add_argument("--conversations", type=int, default=24, help="in each batch")
    parser.add_argument("--blocks", type=int, default=400, help="KV blocks of each engine")
    given = parser.parse_args()
    if given.rounds < 3 or given.conversations < 1:
        parser.error("an interval over fewer than 3 rounds says nothing")
    with tempfile.TemporaryDirectory() as folder:
        done = run(Path(folder), given)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
