"""What kvferry costs requests that share nothing: one engine with it, one without, in turns.

Prints one JSON object. For each prompt length the ratios on ÷ off of the time to the first token
and of the throughput, each as the median over pairs with a 95 % bootstrap interval. The engine
with kvferry is joined to a live ledger and coordinator, and asks a plan for each request.

Run: ``python -m tests.bench.bench_no_share [--pairs 15] [--prompts 512 2048]``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.e2e.conftest import KEY, joined
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.events import Requested
from kvferry_connectors.demo.model import SMALL, TINY, ensure_model

SHAPES = {"tiny": TINY, "small": SMALL}
ALONE = 5
"""Requests one after the other, for the time to the first token."""
TOGETHER = 8
"""Requests at the same time, for the throughput."""
DECODED = 16
RESAMPLES = 2_000


class Load:
    """Prompts that never repeat."""

    def __init__(self) -> None:
        self._draw = random.Random(1)

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        return [[self._draw.randrange(10, 500) for _ in range(tokens)] for _ in range(count)]


def measure(engine: EngineProcess, load: Load, tokens: int) -> tuple[list[float], float]:
    """Seconds to the first token of requests alone; requests a second of many together."""
    alone = [
        engine.ask("timed", [prompt], 2, timeout_s=600)[0][0]
        for prompt in load.prompts(ALONE, tokens)
    ]
    _, took = engine.ask("timed", load.prompts(TOGETHER, tokens), DECODED, timeout_s=600)
    return alone, TOGETHER / took


def pairs(
    on: EngineProcess, off: EngineProcess, load: Load, count: int, tokens: int
) -> dict[str, Any]:
    """``count`` measurements of each, who goes first in turns."""
    firsts: dict[str, list[list[float]]] = {"on": [], "off": []}
    rates: dict[str, list[float]] = {"on": [], "off": []}
    for engine in (on, off):
        measure(engine, load, tokens)  # Warm up.
    for number in range(count):
        order = [("on", on), ("off", off)]
        for name, engine in order if number % 2 else reversed(order):
            alone, rate = measure(engine, load, tokens)
            firsts[name].append(alone)
            rates[name].append(rate)
    ttft = [
        statistics.median(a) / statistics.median(b)
        for a, b in zip(firsts["on"], firsts["off"], strict=True)
    ]
    rate = [a / b for a, b in zip(rates["on"], rates["off"], strict=True)]
    return {
        "ttft_ratio": round(statistics.median(ttft), 4),
        "ttft_ratio_95": interval(ttft),
        "ttft_p95_ratio": round(p95(firsts["on"]) / p95(firsts["off"]), 4),
        "ttft_ms_on": round(1000 * middle(firsts["on"]), 3),
        "ttft_ms_off": round(1000 * middle(firsts["off"]), 3),
        "throughput_ratio": round(statistics.median(rate), 4),
        "throughput_ratio_95": interval(rate),
    }


def middle(groups: list[list[float]]) -> float:
    return statistics.median(value for group in groups for value in group)


def p95(groups: list[list[float]]) -> float:
    return statistics.quantiles([v for group in groups for v in group], n=20)[-1]


def interval(ratios: list[float]) -> list[float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return [round(medians[int(RESAMPLES * q)], 4) for q in (0.025, 0.975)]


def run(folder: Path, count: int, lengths: list[int], shape: str) -> dict[str, Any]:
    """Start both engines, measure, stop them."""
    model = ensure_model(folder / "model", SHAPES[shape])
    plane = Plane(folder)
    engines: list[EngineProcess] = []
    try:
        plane.start_coordinator()
        connector = {"nats_url": plane.url, "key": KEY}
        engines.append(EngineProcess(model, "on", connector=connector))
        engines.append(EngineProcess(model, "off", connector=None))
        on, off = engines
        joined(on)
        off.wait_ready()
        load = Load()
        results = {str(tokens): pairs(on, off, load, count, tokens) for tokens in lengths}
        on.until("waiting", lambda left: left == 0)
        misses = Counter(event.miss for event in of(plane.events(), Requested))
    finally:
        for engine in engines:
            engine.stop()
        plane.stop()
    return {
        "bench": "no_share",
        "pairs": count,
        "model": shape,
        "cpus": os.cpu_count(),
        "misses": dict(misses),
        "prompts": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="measurements of each engine, >= 5")
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048], metavar="TOKENS")
    parser.add_argument("--model", choices=sorted(SHAPES), default="tiny")
    given = parser.parse_args()
    if given.pairs < 5:
        parser.error("an interval over fewer than 5 pairs says nothing")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(Path(folder), given.pairs, given.prompts, given.model)))


if __name__ == "__main__":
    main()
