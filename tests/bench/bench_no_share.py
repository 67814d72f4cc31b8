"""What kvferry costs requests that share nothing, beside an engine without it.

Three engines of the same model take turns: ``on`` with kvferry, joined to a live ledger and
coordinator; ``off`` without any connector; ``empty`` with a connector that does nothing, which
shows what vLLM itself spends on having one. Prints one JSON object: for each prompt length the
ratios to ``off`` of the time to the first token and of the throughput, each as the median over all
pairs with a 95 % bootstrap interval over groups of fresh processes and pairs within them.

With ``--one-engine`` a single engine takes turns with and without its connector. That tells the
cost of the hooks, vLLM's own for having a connector included, to a fraction of a per cent, for the
process is the same. ``threads_ms`` is the CPU time that kvferry's threads in the engine's process
use for one request: at most so much could they take from the engine's thread.

Run: ``python -m tests.bench.bench_no_share [--groups 4] [--pairs 15] [--prompts 512 2048]``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.bench.intervals import ratio
from tests.e2e.conftest import KEY, joined
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.events import Requested
from kvferry_connectors.demo.model import SMALL, TINY, ensure_model

SHAPES = {"tiny": TINY, "small": SMALL}
ARMS = ("on", "empty", "off")
ALONE = 5
"""Requests one after the other, for the time to the first token."""
TOGETHER = 8
"""Requests at the same time, for the throughput."""
DECODED = 16
EMPTY = {
    "kv_connector": "EmptyConnector",
    "kv_connector_module_path": "tests.bench.empty_connector",
    "kv_role": "kv_both",
}


class Measured(Protocol):
    """An engine, or one arm of it."""

    name: str

    def ask(self, what: str, *args: Any, timeout_s: float) -> Any: ...


class Load:
    """Prompts that never repeat."""

    def __init__(self) -> None:
        self._draw = random.Random(1)

    def prompts(self, count: int, tokens: int) -> list[list[int]]:
        return [[self._draw.randrange(10, 500) for _ in range(tokens)] for _ in range(count)]

    def order(self, engines: Sequence[Measured]) -> list[Measured]:
        return self._draw.sample(list(engines), len(engines))


class Turns:
    """One arm of an engine that takes turns."""

    def __init__(self, engine: EngineProcess, name: str) -> None:
        self._engine = engine
        self.name = name

    def ask(self, what: str, *args: Any, timeout_s: float) -> Any:
        self._engine.ask("switch", self.name)
        try:
            return self._engine.ask(what, *args, timeout_s=timeout_s)
        finally:
            self._engine.ask("switch", "on")


class Arm:
    """What one engine measured in one group."""

    def __init__(self) -> None:
        self.alone: list[list[float]] = []
        self.rates: list[float] = []
        self.threads_s = 0.0

    def measure(self, engine: Measured, load: Load, tokens: int) -> None:
        """Seconds to the first token of requests alone; requests a second of many together."""
        before = engine.ask("own_threads", timeout_s=60)
        self.alone.append(
            [
                engine.ask("timed", [prompt], 2, timeout_s=600)[0][0]
                for prompt in load.prompts(ALONE, tokens)
            ]
        )
        _, took = engine.ask("timed", load.prompts(TOGETHER, tokens), DECODED, timeout_s=600)
        self.rates.append(TOGETHER / took)
        self.threads_s += engine.ask("own_threads", timeout_s=60) - before


def one_group(engines: Sequence[Measured], load: Load, pairs: int, tokens: int) -> dict[str, Arm]:
    """``pairs`` measurements of each engine, in an order drawn anew each time."""
    for engine in engines:
        Arm().measure(engine, load, tokens)  # Warm up.
    arms = {engine.name: Arm() for engine in engines}
    for _ in range(pairs):
        for engine in load.order(engines):
            arms[engine.name].measure(engine, load, tokens)
    return arms


def compared(groups: list[dict[str, Arm]], name: str) -> dict[str, Any]:
    """Arm ``name`` against ``off``."""
    firsts = [
        [
            statistics.median(a) / statistics.median(b)
            for a, b in zip(arms[name].alone, arms["off"].alone, strict=True)
        ]
        for arms in groups
    ]
    rates = [
        [a / b for a, b in zip(arms[name].rates, arms["off"].rates, strict=True)] for arms in groups
    ]
    first, first_95 = ratio(firsts)
    rate, rate_95 = ratio(rates)
    return {
        "ttft_ratio": first,
        "ttft_ratio_95": first_95,
        "ttft_p95_ratio": round(p95(groups, name) / p95(groups, "off"), 4),
        "throughput_ratio": rate,
        "throughput_ratio_95": rate_95,
    }


def report(groups: list[dict[str, Arm]]) -> dict[str, Any]:
    """The ratios of one prompt length."""
    medians = {
        f"ttft_ms_{name}": round(1000 * statistics.median(flat(groups, name)), 3) for name in ARMS
    }
    threads_ms = statistics.fmean(
        1000 * arms["on"].threads_s / len(arms["on"].rates) / (ALONE + TOGETHER) for arms in groups
    )
    return {
        **compared(groups, "on"),
        "empty": compared(groups, "empty"),
        **medians,
        "threads_ms": round(threads_ms, 3),
    }


def flat(groups: list[dict[str, Arm]], name: str) -> list[float]:
    return [value for arms in groups for group in arms[name].alone for value in group]


def p95(groups: list[dict[str, Arm]], name: str) -> float:
    return statistics.quantiles(flat(groups, name), n=20)[-1]


def started(given: argparse.Namespace, model: Path, plane: Plane) -> list[EngineProcess]:
    """The engines of one group; the first has kvferry."""
    arms: list[tuple[str, Any, dict[str, Any]]] = [("on", {"nats_url": plane.url, "key": KEY}, {})]
    if not given.one_engine:
        arms += [("empty", None, {"kv_transfer_config": EMPTY}), ("off", None, {})]
    engines: list[EngineProcess] = []
    for name, own, more in arms:
        engines.append(EngineProcess(model, name, connector=own, **given.engine_args, **more))
        if given.engine_args:
            engines[-1].wait_ready()  # One after the other measures the memory it may take.
    return engines


def run_group(
    folder: Path, model: Path, load: Load, given: argparse.Namespace
) -> tuple[dict[int, dict[str, Arm]], Counter[str]]:
    """Start the engines, measure every length, stop them."""
    plane = Plane(folder)
    engines: list[EngineProcess] = []
    try:
        plane.start_coordinator()
        engines += started(given, model, plane)
        joined(engines[0])
        for engine in engines:
            engine.wait_ready()
        measured: Sequence[Measured] = engines
        if given.one_engine:
            measured = [Turns(engines[0], name) for name in ARMS]
        arms = {tokens: one_group(measured, load, given.pairs, tokens) for tokens in given.prompts}
        engines[0].until("waiting", lambda left: left == 0)
        misses = Counter(event.miss for event in of(plane.events(), Requested))
    finally:
        for engine in engines:
            engine.stop()
        plane.stop()
    return arms, misses


def run(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All groups."""
    named = SHAPES.get(given.model)
    model = ensure_model(folder / "model", named) if named is not None else Path(given.model)
    load = Load()
    misses: Counter[str] = Counter()
    measured = []
    for number in range(given.groups):
        (own := folder / f"group-{number}").mkdir()
        arms, missed = run_group(own, model, load, given)
        measured.append(arms)
        misses += missed
    return {
        "bench": "no_share",
        "one_engine": given.one_engine,
        "groups": given.groups,
        "pairs": given.pairs,
        "model": given.model,
        "engine_args": given.engine_args,
        "cpus": os.cpu_count(),
        "misses": dict(misses),
        "prompts": {str(n): report([arms[n] for arms in measured]) for n in given.prompts},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=4, help="sets of fresh engine processes")
    parser.add_argument("--pairs", type=int, default=15, help="measurements in each set, >= 5")
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048], metavar="TOKENS")
    parser.add_argument("--model", default="small", help="tiny, small or a model's folder")
    parser.add_argument(
        "--engine-args", type=json.loads, default={}, metavar="JSON", help="more for vllm.LLM"
    )
    parser.add_argument(
        "--one-engine", action="store_true", help="measure the hooks alone, in one process"
    )
    given = parser.parse_args()
    if given.pairs < 5 or given.groups < 1:
        parser.error("an interval over fewer than 5 pairs says nothing")
    with tempfile.TemporaryDirectory() as folder:
        done = run(Path(folder), given)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
