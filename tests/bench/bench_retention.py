"""What retention costs a crowd of short conversations on small pools, and what it brings them.

A prefill and a decode engine serve conversations, twelve turns at a time, whose second turns come
when many others have been in between. Batches take turns with retention on and off on the same two
engines; the two batches of a round have prompts of the same lengths in the same order, and texts
that never repeat. vLLM's own fixed retention of 480 s stops a decode engine for minutes under such
a load. Prints one JSON object: the ratio of turns per second, on to off, as the median over all
rounds with a 95 % bootstrap interval; the slowest turn; who waited for whose blocks; what leases
were for and how they ended; where each engine's prompt tokens came from; and for each turn
the microseconds of CPU that each engine's own thread spent on leases, and kvferry's threads on
everything.

Without ``--model`` the tiny model runs on the CPU with pools of ``--blocks`` blocks. On GPUs, one
for each engine and the pool of each by ``kv_cache_memory_bytes``::

    python -m tests.bench.bench_retention --model DIR --devices 0,1 --prompt 300,6000 \\
        --engine-args '{"dtype": "bfloat16", "load_format": "dummy", "block_size": 16, ...}'

Run: ``python -m tests.bench.bench_retention [--rounds 10] [--conversations 24]``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.bench.crowd import SOURCES, Crowd, Seen, spread_lengths
from tests.bench.intervals import ratio
from tests.e2e.conftest import BLOCK, KEY, joined
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane

from kvferry_connectors.demo.model import TINY, ensure_model

BLOCK_BYTES = BLOCK * 1024
TURNS = 2
ARMS = ("on", "off")
LEAST_ROUNDS = 3
TAIL_CHARS = 6_000
"""Of the engines' log, shown where something fails."""


def run(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Both arms on one pair of engines."""
    model = given.model or ensure_model(folder / "model", TINY)
    (own := folder / "plane").mkdir()
    plane = Plane(own)
    engines: list[EngineProcess] = []
    (log := folder / "engines.log").touch()
    tiny = {"kv_cache_memory_bytes": given.blocks * BLOCK_BYTES, "max_model_len": 2048}
    try:
        # A model that is given takes long enough to compute for moves to be judged as for users.
        plane.start_coordinator(cost=given.model is not None)
        for name, device in zip(("p0", "d0"), given.devices or ("", ""), strict=True):
            engine = EngineProcess(
                model,
                name,
                connector={"nats_url": plane.url, "key": KEY},
                env={"CUDA_VISIBLE_DEVICES": device} if device else None,
                log=log,
                **tiny | given.engine_args,
            )
            engines.append(engine)
        joined(*engines)
        return measured(engines, given)
    except Exception:
        print(log.read_text(errors="replace")[-TAIL_CHARS:], file=sys.stderr)
        raise
    finally:
        for engine in engines:
            engine.ask_to_stop()
        for engine in engines:
            engine.stop()
        plane.stop()


class Rounds:
    """Rounds of one batch per arm, over the same two engines."""

    def __init__(self, engines: list[EngineProcess], given: argparse.Namespace) -> None:
        self._engines = engines
        self._given = given
        prefill, decode = engines
        self._crowd, self._draw = Crowd(prefill, decode), random.Random(2)
        self.seen: dict[str, list[Seen]] = {arm: [] for arm in ARMS}
        self.counts: dict[str, Counter[str]] = {arm: Counter() for arm in ARMS}

    def warm_up(self) -> None:
        """Compile what is compiled at first use, and fill the pools."""
        for arm in ARMS:
            self._batch(arm, self._lengths())

    def measure(self) -> None:
        """All rounds, or as many as begin within the limit. Who comes first alternates."""
        began_s = time.monotonic()
        for number in range(self._given.rounds):
            if number >= LEAST_ROUNDS and time.monotonic() - began_s > self._given.limit_s:
                return
            lengths = self._lengths()
            for arm in ARMS[:: 1 if number % 2 else -1]:
                before = counted(self._engines)
                self.seen[arm].append(self._batch(arm, lengths))
                after = counted(self._engines)
                after.subtract(before)
                self.counts[arm].update(after)
            took = ", ".join(f"{arm} {self.seen[arm][-1].took_s:.2f} s" for arm in ARMS)
            print(f"round {number + 1}: {took}", file=sys.stderr, flush=True)

    def ratios(self) -> list[float]:
        """Turns per second of each round, on to off."""
        pairs = zip(self.seen["on"], self.seen["off"], strict=True)
        return [(on.turns / on.took_s) / (off.turns / off.took_s) for on, off in pairs]

    def _lengths(self) -> list[int]:
        return spread_lengths(self._given.conversations, self._given.prompt, self._draw)

    def _batch(self, arm: str, lengths: list[int]) -> Seen:
        for engine in self._engines:
            engine.ask("leasing", arm == "on")
        at_once, answer = self._given.at_once, self._given.answer
        return self._crowd.run(lengths, at_once=at_once, turns=TURNS, answer=answer)


def measured(engines: list[EngineProcess], given: argparse.Namespace) -> dict[str, Any]:
    """What the rounds saw."""
    rounds = Rounds(engines, given)
    rounds.warm_up()
    for engine in engines:
        engine.ask("watch")
        engine.ask("watch_leasing")
    rounds.measure()
    ratios = rounds.ratios()
    middle, bounds = ratio([ratios])
    return {
        "bench": "retention",
        "rounds": len(ratios),
        "conversations": 2 * len(ratios) * given.conversations,
        "at_once": given.at_once,
        "prompt": given.prompt,
        "blocks": {engine.name: engine.ask("total_blocks") for engine in engines},
        "engine_args": given.engine_args,
        "cpus": os.cpu_count(),
        "throughput_ratio": middle,
        "throughput_ratio_95": bounds,
        "ratios": [round(one, 4) for one in ratios],
        "arms": {arm: told(rounds.seen[arm], rounds.counts[arm]) for arm in ARMS},
        "leases": {
            engine.name: dict(zip(("begun", "ended"), engine.ask("leased"), strict=True))
            for engine in engines
        },
        "in_the_way": max(engine.ask("waits").in_the_way for engine in engines),
    }


def counted(engines: list[EngineProcess]) -> Counter[str]:
    """Until now: allocations that found no room, over both engines, and CPU time spent."""
    waits = [engine.ask("waits") for engine in engines]
    counts = Counter(
        refused=sum(one.refused for one in waits), preempted=sum(one.preempted for one in waits)
    )
    for engine in engines:
        counts[f"{engine.name}_leasing_us"] = round(engine.ask("leasing_s") * 1e6)
        counts[f"{engine.name}_threads_us"] = round(engine.ask("own_threads") * 1e6)
    return counts


def told(seen: list[Seen], counts: Counter[str]) -> dict[str, Any]:
    """One arm."""
    turns = sum(one.turns for one in seen)
    return {
        "turns_per_s": round(turns / sum(one.took_s for one in seen), 3),
        "slowest_turn_s": round(max(one.slowest_s for one in seen), 3),
        **{what: counts[what] for what in ("refused", "preempted")},
        "us_per_turn": {
            what.removesuffix("_us"): round(count / turns, 1)
            for what, count in counts.items()
            if what.endswith("_us")
        },
        "p0_tokens": shares(one.prefill for one in seen),
        "d0_tokens": shares(one.decode for one in seen),
    }


def shares(counts: Iterable[Counter[str]]) -> dict[str, float]:
    """Of all prompt tokens, by where they came from."""
    whole: Counter[str] = sum(counts, Counter())
    return {source: round(whole[source] / whole.total(), 4) for source in SOURCES}


def two_of(kind: type) -> Any:
    """A parser of two values with a comma between them."""

    def pair(text: str) -> tuple[Any, Any]:
        first, second = text.split(",")
        return kind(first), kind(second)

    return pair


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, default=10, help=f"batches of each arm, >= {LEAST_ROUNDS}")
    add("--limit-s", type=float, default=3600.0, help="no further round begins after so long")
    add("--conversations", type=int, default=24, help="in each batch")
    add("--at-once", type=int, default=12, help="turns under way at the same time")
    add("--prompt", type=two_of(int), default=(100, 900), metavar="MIN,MAX", help="tokens")
    add("--answer", type=int, default=32, help="tokens of each answer")
    add("--blocks", type=int, default=400, help="KV blocks of each engine of the tiny model")
    add("--model", type=Path, help="a model's folder; by default the tiny one is made")
    add("--engine-args", type=json.loads, default={}, metavar="JSON", help="more for vllm.LLM")
    add("--devices", type=two_of(str), metavar="P,D", help="the GPU of each engine")
    given = parser.parse_args()
    if given.rounds < LEAST_ROUNDS or given.conversations < 1:
        parser.error(f"--rounds: an interval over fewer than {LEAST_ROUNDS} says nothing")
    sizes = {"kv_cache_memory_bytes", "max_model_len"}
    if given.model and not sizes <= given.engine_args.keys():
        parser.error(f"--model: --engine-args have to say {' and '.join(sorted(sizes))}")
    return given


def main() -> None:
    given = parse()
    with tempfile.TemporaryDirectory() as folder:
        done = run(Path(folder), given)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
