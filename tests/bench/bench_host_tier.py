"""What the host tier costs the engine thread, and what it gives a small engine.

::

    python -m tests.bench.bench_host_tier [--json FILE] [--rounds N]

``step_us``: the tier's part of a step, with a copy ordered and taken in at each, for pieces of
several sizes, and with nothing to do; ``consider_us``: a request's look for its prefix. Both on
tables of the size of a real engine's, in this process, with no worker.

``turns``: an engine on CPU whose cache is too small for its conversations. Turns alternate between
one engine with a host tier and one without; ``ttft_ratio`` is recompute ÷ host tier of the second
turns' medians, ``pulled_share`` what part of their prompts came from the tier. ``others_ratio`` is
how much longer the requests take that share nothing and press the blocks out of the cache: on the
engine with a tier copies go on beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.e2e.conftest import KEY, prompt
from tests.e2e.engine import EngineProcess
from tests.unit.connector.support import chain, tracked

from kvferry.node.export.host_copies import ToHost
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.demo.model import Shape, ensure_model
from kvferry_connectors.vllm.host import HostTier
from kvferry_connectors.vllm.hosting import Hosting
from kvferry_connectors.vllm.metadata import RankCopied
from kvferry_connectors.vllm.options import Options

SLOTS = 20_000
BLOCK = 32
REPEATS = 300
PROMPT, SAID, ANSWER = 1600, 60, 24
POOL_BLOCKS = 160
SHAPE = Shape(layers=4, hidden=256, heads=4, mlp=768)
SHAPE_BYTES = SHAPE.layers * 2 * SHAPE.kv_heads * SHAPE.head_dim * 4
"""KV of a token, in float32."""


def percentiles(samples_us: list[float]) -> dict[str, float]:
    samples_us.sort()
    return {
        "p50": round(statistics.median(samples_us), 2),
        "p99": round(samples_us[int(len(samples_us) * 0.99)], 2),
    }


def tier(present: dict[int, bytes], outbox: Outbox) -> HostTier:
    exports = ExportTable("life", on_pin_ended=lambda end: None)
    return HostTier(
        present.get,
        exports,
        outbox,
        slots=SLOTS,
        ranks=1,
        engine_blocks=100_000,
        block_bytes=1,
        bytes_per_s=1e15,
    )


def step_cost(blocks: int) -> dict[str, float]:
    """Order a piece of ``blocks`` blocks and take it in: microseconds of both together."""
    present: dict[int, bytes] = {}
    outbox = Outbox(translate=lambda item: ())
    made = tier(present, outbox)
    samples = []
    for nth in range(REPEATS):
        hashes = chain(f"{blocks}/{nth}", max(1, blocks))
        ids = list(range(nth * 64, nth * 64 + len(hashes)))
        present.update(zip(ids, hashes, strict=True))
        if blocks:
            made.copy(ToHost(f"x.{nth}", hashes, ids))
        began = time.perf_counter()
        order = made.each_step()
        if order is not None:
            made.copied(RankCopied(order.id, 0, True))
        samples.append((time.perf_counter() - began) * 1e6)
        outbox.work()
    return percentiles(samples)


def consider_cost(held: int, wanted: int) -> dict[str, float]:
    """A request of ``wanted`` blocks of which the tier has ``held``."""
    present: dict[int, bytes] = {}
    made = tier(present, Outbox())
    hashes = chain("a", wanted)
    run = made.table
    run.begin("r", "", 0.0)
    run.fill(run.take(held, 0.0, set).slots, hashes[:held])
    run.grow("r", hashes[:held])
    run.settle("r")
    pulls: Any = SimpleNamespace(
        too_little=lambda *asked: "" if asked[1] else "too_short", drop=lambda *asked: None
    )
    outbox: Any = SimpleNamespace(reserve=lambda: True)
    none: Any = None
    hosting = Hosting(Options(), outbox, none, pulls, none)
    hosting.tier, hosting._block_size = made, BLOCK
    hosting._joined = SimpleNamespace(node="p0", incarnation="life")  # type: ignore[assignment]
    samples = []
    for nth in range(REPEATS):
        request = tracked(f"r{nth}", hashes)
        began = time.perf_counter()
        hosting.consider(request, 0, "on")
        samples.append((time.perf_counter() - began) * 1e6)
    return percentiles(samples)


def turns(rounds: int) -> dict[str, Any]:
    """Second turns whose blocks the cache has lost, with a host tier and without."""
    with tempfile.TemporaryDirectory() as folder:
        model = ensure_model(Path(folder) / "model", SHAPE)
        engines = {
            name: EngineProcess(
                model,
                name,
                connector={"nats_url": "nats://127.0.0.1:1", "key": KEY, "host_tier_bytes": size},
                kv_cache_memory_bytes=POOL_BLOCKS * BLOCK * SHAPE_BYTES,
                max_model_len=4096,
            )
            for name, size in (("hosted", 512 << 20), ("bare", 0))
        }
        try:
            for engine in engines.values():
                engine.wait_ready()
                engine.until("hosting", bool)
            return _turns(engines, rounds)
        finally:
            for engine in engines.values():
                engine.stop()


def _turns(engines: dict[str, EngineProcess], rounds: int) -> dict[str, Any]:
    took: dict[str, list[float]] = {name: [] for name in engines}
    others: dict[str, list[float]] = {name: [] for name in engines}
    pulled = []
    for nth in range(rounds):
        for name, engine in engines.items():
            text = prompt(nth, PROMPT)
            first = engine.run(f"{nth}-1", text, tokens=ANSWER)
            began = time.perf_counter()
            for other in range(4):
                engine.run(f"{nth}-o{other}", prompt(10_000 + 10 * nth + other, PROMPT), tokens=4)
            others[name].append((time.perf_counter() - began) * 1000)
            longer = text + first.tokens + prompt(50_000 + nth, SAID)
            began = time.perf_counter()
            second = engine.run(f"{nth}-2", longer, tokens=1)
            took[name].append((time.perf_counter() - began) * 1000)
            if name == "hosted":
                pulled.append(second.report["pulled"] / len(longer))
    ratios = [on / off for on, off in zip(others["hosted"], others["bare"], strict=True)]
    medians = {name: statistics.median(samples) for name, samples in took.items()}
    return {
        "rounds": rounds,
        "ttft_ms": {name: round(ms, 1) for name, ms in medians.items()},
        "ttft_ratio": round(medians["bare"] / medians["hosted"], 2),
        "pulled_share": round(statistics.median(pulled), 3),
        "others_ratio": {
            "median": round(statistics.median(ratios), 3),
            "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=12, help="conversations on each engine")
    args = parser.parse_args()
    figures = {
        "step_us": {str(blocks): step_cost(blocks) for blocks in (0, 1, 8, 32)},
        "consider_us": {
            "miss_of_3750_blocks": consider_cost(0, 3750),
            "hit_of_128_blocks": consider_cost(128, 128),
            "hit_of_3750_blocks": consider_cost(3750, 3750),
        },
        "turns": turns(args.rounds),
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
