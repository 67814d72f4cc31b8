"""How fast facts fold, and what digest and snapshot of the result cost. Prints one JSON line.

Run: ``python -m tests.bench.bench_fold``
"""

from __future__ import annotations

import json
import random
import time

from tests.property.stories import Node

from kvferry.core.apply import apply_batch
from kvferry.core.digest import digest
from kvferry.core.envelope import Position
from kvferry.core.snapshot import decode, encode
from kvferry.core.state import State

BATCHES = 3_000
EVENTS_PER_BATCH = 64


def main() -> None:
    """Fold honest facts of one node and report events a second and milliseconds."""
    node = Node("p0", 1, random.Random(7))
    batches = [node.join()]
    batches += [node.batch(*(node.act() for _ in range(EVENTS_PER_BATCH))) for _ in range(BATCHES)]
    state = State()
    began = time.perf_counter()
    applied = sum(len(apply_batch(state, b, Position(n, n))) for n, b in enumerate(batches, 1))
    fold_s = time.perf_counter() - began
    began = time.perf_counter()
    digest(state)
    digest_s = time.perf_counter() - began
    began = time.perf_counter()
    data = encode(state)
    decode(data)
    snapshot_s = time.perf_counter() - began
    result = {
        "events": applied,
        "events_per_s": round(applied / fold_s),
        "digest_ms": round(digest_s * 1e3, 2),
        "snapshot_round_trip_ms": round(snapshot_s * 1e3, 2),
        "snapshot_bytes": len(data),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
