"""Whether a pull slows the steps of the engine that pulls, and what a busy pair's tail looks like.

``steps``: P computes two long prompts while a third request comes whose history P pulls from D
(``pulling``), has in its own cache (``warm``: the same work for P, but no pull) or does not come
at all (``alone``). The prefills' times tell what the pull costs them.

``mixed``: conversations of two to four turns, many at a time, over the same pair: with reuse, and
without; and over a pair with vLLM's NixlConnector. Times to the first token of every turn.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.asking import prefill
from tests.gpu.families import REUSE_OFF, Family, Ferry, Native, Prompts, fragment, together
from tests.gpu.figures import Record, percentile, spread
from tests.gpu.servers import Bench
from tests.gpu.shape_model import SHAPES

STEP_ARMS = ("alone", "warm", "pulling")
MIXED_ARMS = ("kvferry", "off", "nixl")
TURNS = (2, 4)
AT_ONCE = 12
STAGGER_S = 0.01
"""The prefills come so much after the third request, whose pull then runs beside their steps."""


class Steps:
    """Two prefills on P beside nothing, a warm request, or a pull."""

    def __init__(self, ferry: Ferry, prompts: Prompts, options: argparse.Namespace) -> None:
        self._ferry = ferry
        self._prompts = prompts
        self._options = options

    def measure(self) -> dict[str, Any]:
        """Milliseconds of the slower prefill and of the third request, by arm."""
        prefills: dict[str, list[float]] = {arm: [] for arm in STEP_ARMS}
        thirds: dict[str, list[float]] = {arm: [] for arm in STEP_ARMS if arm != "alone"}
        for repetition in range(self._options.reps):
            shift = repetition % len(STEP_ARMS)
            for arm in STEP_ARMS[shift:] + STEP_ARMS[:shift]:
                slower, third = self._once(arm)
                prefills[arm].append(slower * 1000)
                if arm in thirds:
                    thirds[arm].append(third * 1000)
        return {
            "slower_prefill_ms": {arm: spread(values) for arm, values in prefills.items()},
            "third_request_ms": {arm: spread(values) for arm, values in thirds.items()},
            "pulling_over_warm": round(
                spread(prefills["pulling"], 6)["median"] / spread(prefills["warm"], 6)["median"], 3
            ),
        }

    def _once(self, arm: str) -> tuple[float, float]:
        history = self._prompts.fresh(self._options.history)
        first = self._ferry.turn(history, 8)
        self._ferry.forget_p()
        if arm == "warm":
            self._ferry.warm_p(history)
        third = history + first.answer + self._prompts.fresh(64)
        hint = first.hint if arm == "pulling" else REUSE_OFF
        calls: list[Callable[[], float]] = []
        if arm != "alone":
            calls.append(partial(self._seconds, third, hint, 0.0))
        for _ in range(2):
            ids = self._prompts.fresh(self._options.prefill)
            calls.append(partial(self._seconds, ids, REUSE_OFF, STAGGER_S))
        took = together(calls)
        return max(took[-2:]), took[0]

    def _seconds(self, ids: list[int], params: dict[str, Any] | None, after_s: float) -> float:
        time.sleep(after_s)
        began_s = time.perf_counter()
        prefill(self._ferry.p, ids, params)
        return time.perf_counter() - began_s


class Mixed:
    """A few hundred requests of conversations, the same lengths in each arm."""

    def __init__(self, prompts: Prompts, options: argparse.Namespace) -> None:
        self._prompts = prompts
        top = 300 if options.cpu else 12_000
        draw = random.Random(7)
        self._shapes: list[list[tuple[int, int]]] = []
        while sum(len(shape) for shape in self._shapes) < options.requests:
            turns = draw.randint(*TURNS)
            opening = draw.randint(top // 12, top)
            added = [draw.randint(top // 100 + 1, top // 8) for _ in range(turns - 1)]
            self._shapes.append([(new, draw.randint(8, 48)) for new in [opening, *added]])

    def measure(self, family: Family, *, reuse: bool) -> dict[str, Any]:
        """Milliseconds to the first token over all turns, and over all but the first ones."""
        began_s = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = [pool.submit(self._talk, family, shape, reuse) for shape in self._shapes]
            talks = [job.result() for job in jobs]
        took_s = time.monotonic() - began_s
        every = [ms for talk in talks for ms in talk]
        later = [ms for talk in talks for ms in talk[1:]]
        return {
            "all_turns_ms": _tail(every),
            "later_turns_ms": _tail(later),
            "requests": len(every),
            "requests_per_s": round(len(every) / took_s, 2),
        }

    def _talk(self, family: Family, shape: list[tuple[int, int]], reuse: bool) -> list[float]:
        text: list[int] = []
        hint: dict[str, Any] | None = None
        took = []
        for new, answer in shape:
            text = text + self._prompts.fresh(new)
            turn = family.turn(text, answer, hint if reuse else None)
            took.append(turn.ttft_s * 1000)
            text, hint = text + turn.answer, turn.hint
        return took


def _tail(values: list[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {name: round(percentile(values, share), 1) for name, share in shares.items()}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of slowdown.json")
    parser.add_argument("--model", default="", help="folder; by default one of --shape is made")
    parser.add_argument("--shape", default="llama8b", choices=SHAPES)
    parser.add_argument("--parts", default="steps,mixed")
    parser.add_argument("--arms", default=",".join(MIXED_ARMS), help="of the mixed part")
    parser.add_argument("--reps", type=int, default=7, help="of the steps part")
    parser.add_argument("--prefill", type=int, default=15_000, help="tokens of each prefill")
    parser.add_argument("--history", type=int, default=60_000, help="tokens that are pulled")
    parser.add_argument("--requests", type=int, default=300, help="of the mixed part, in each arm")
    parser.add_argument("--fragment", type=int, default=120, help="requests before measuring")
    parser.add_argument("--pool", default="36G", help="KV cache of each engine")
    parser.add_argument("--cpu", action="store_true", help="rehearse with vLLM's CPU build")
    options = parser.parse_args(argv)
    for option, known in (("parts", ("steps", "mixed")), ("arms", MIXED_ARMS)):
        unknown = set(getattr(options, option).split(",")) - set(known)
        if unknown:
            parser.error(f"--{option}: unknown {', '.join(sorted(unknown))}; known: {known}")
    if options.cpu and "mixed" in options.parts and "nixl" in options.arms:
        parser.error("--cpu rehearses --arms kvferry,off only")
    return options


def main() -> None:
    options = parse()
    mixed = options.arms.split(",") if "mixed" in options.parts else []
    began_s = time.monotonic()
    record = Record(options.out / "slowdown.json")
    with Bench(cpu=options.cpu) as bench:
        model = bench.model(options.model, options.shape)
        sizes = bench.sizes(options.pool, 80_000)
        bench.ledger()
        ferry = Ferry()
        families: list[Family] = [ferry]
        ferry.serve(bench, model, sizes)
        if "nixl" in mixed:
            native = Native(offload=False)
            native.serve(bench, model, sizes)
            families.append(native)
        bench.wait_up()
        prompts = Prompts(500 if options.cpu else 128_000)
        fragment(families, prompts, options.fragment, 500 if options.cpu else 6000)
        if "steps" in options.parts:
            record.put("steps", Steps(ferry, prompts, options).measure())
        load = Mixed(prompts, options) if mixed else None
        for arm in mixed:
            assert load is not None
            family = families[-1] if arm == "nixl" else ferry
            record.add_row(arm, load.measure(family, reuse=arm != "off"))
        record.put("took_s", round(time.monotonic() - began_s, 1))
    sys.exit(0)


if __name__ == "__main__":
    main()
