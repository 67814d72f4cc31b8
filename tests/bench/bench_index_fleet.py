"""The index of a fleet whose prompts all begin alike: offers taken in, and look-ups.

Run: ``python -m tests.bench.bench_index_fleet``. Prints one JSON line.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable

from tests.property.index_model import Offer

from kvferry.bench.results import percentile
from kvferry.core.leases import CACHE
from kvferry.ids import SHORT_BYTES
from kvferry.index.residency import Residency

NODES = 1_000
OFFERS_EACH = 100
COMMON, OWN = 8, 60
"""Samples of the prompt that all share, and of what follows it."""
STRIDE = 8
BEST = 32
"""As many sources as a plan weighs."""
LOOKUPS = 500


def main() -> None:
    """Fill the index, ask it, empty half of it."""
    common = os.urandom(COMMON * SHORT_BYTES)
    offers = [
        (f"{node}.{number}", Offer(f"n{node}", CACHE, common + os.urandom(OWN * SHORT_BYTES)))
        for number in range(OFFERS_EACH)
        for node in range(NODES)
    ]
    index = Residency()
    gc.collect()
    tracked = len(gc.get_objects())
    put_us = _each_us(lambda: [index.put(name, offer, STRIDE) for name, offer in offers], offers)
    samples = index.samples()
    gc.collect()
    tracked = len(gc.get_objects()) - tracked
    stranger = common + os.urandom(OWN * SHORT_BYTES)
    result = {
        "nodes": NODES,
        "offers": len(offers),
        "samples": samples,
        "put_us": put_us,
        "lookup_best_us_p50": _lookup_us(lambda: index.holders(stranger, limit=BEST)),
        "lookup_all_us_p50": _lookup_us(lambda: index.holders(stranger)),
        "objects_for_the_collector": tracked,
        "drop_us": _each_us(lambda: [index.drop(name) for name, _ in offers], offers),
    }
    assert index.samples() == 0
    print(json.dumps(result))


def _took_s(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _each_us(work: Callable[[], object], items: list[tuple[str, Offer]]) -> float:
    return round(_took_s(work) / len(items) * 1e6, 2)


def _lookup_us(ask: Callable[[], object]) -> float:
    return round(percentile(sorted(_took_s(ask) * 1e6 for _ in range(LOOKUPS)), 0.5), 1)


if __name__ == "__main__":
    main()
