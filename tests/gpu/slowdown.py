"""Whether a pull slows the steps of the engine that pulls, and what a busy pair's tail looks like.

``steps``: P computes two long prompts while a third request comes whose history P pulls from D
(``pulling``), has in its own cache (``warm``: the same work for P, but no pull) or does not come
at all (``alone``). The prefills' times tell what the pull costs them.

``mixed``: conversations of two to four turns, many at a time, over the same pair: with reuse, and
without; and over a pair with vLLM's NixlConnector. P keeps the conversations in its own cache, so
that reuse has little to add and its cost is seen.

``pressed``: P's pool is too small for the conversations in play, D's is not. A conversation's next
turn comes when all others have had theirs, and P has evicted it by then: without reuse, P computes
it again.

The arms of these two serve a share of the load in each round, in an order that turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.asking import get, pool_tokens, prefill
from tests.gpu.families import REUSE_OFF, Family, Ferry, Native, Prompts, fragment, together
from tests.gpu.figures import Record, spread
from tests.gpu.rounds import Rounds
from tests.gpu.servers import CPU_POOL, Bench
from tests.gpu.shape_model import SHAPES
from tests.gpu.talks import MIXED_TURNS, PRESSED_TURNS, Arm, Load, mixed, pressed

PARTS = ("steps", "mixed", "pressed")
LOADS = {"mixed": mixed, "pressed": pressed}
STEP_ARMS = ("alone", "warm", "pulling")
ARMS = ("kvferry", "off", "nixl")
POOL = "36G"
LONGEST = 80_000
PRESSED_LONGEST = 16_384
"""``max-model-len``: P's pool must hold so many tokens at least."""
STAGGER_S = 0.01
"""The prefills come so much after the third request, whose pull then runs beside their steps."""


class Steps:
    """Two prefills on P beside nothing, a warm request, or a pull."""

    def __init__(self, ferry: Family, prompts: Prompts, options: argparse.Namespace) -> None:
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


def fits(load: Load, pools: dict[str, int]) -> str:
    """What is wrong with the pools of a pressed P and its D, in tokens; empty if nothing is.

    A pool of 0 tokens is one whose server does not tell its size.
    """
    begun, ended = load.in_play_tokens(), load.longest_share_tokens()
    if pools["p"] > begun:
        return (
            f"P's pool holds {pools['p']} tokens and the {begun} in play do not press it: "
            "give a smaller --p-pool, more --requests, or fewer --rounds"
        )
    if pools["d"] and pools["d"] < ended:
        return (
            f"D's pool holds {pools['d']} tokens, fewer than the {ended} in play: "
            "give a larger --pool, fewer --requests, or more --rounds"
        )
    return ""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of slowdown.json")
    parser.add_argument("--model", default="", help="folder; by default one of --shape is made")
    parser.add_argument("--shape", default="llama8b", choices=SHAPES)
    parser.add_argument(
        "--parts", default="steps,mixed", help="of steps, mixed, pressed; the last by itself"
    )
    parser.add_argument("--arms", default=",".join(ARMS), help="of mixed and pressed")
    parser.add_argument("--reps", type=int, default=7, help="of steps")
    parser.add_argument("--prefill", type=int, default=15_000, help="tokens of each prefill")
    parser.add_argument("--history", type=int, default=60_000, help="tokens that are pulled")
    parser.add_argument(
        "--requests", type=int, default=300, help="of mixed and pressed, in each arm in total"
    )
    parser.add_argument("--rounds", type=int, default=6, help="of mixed and pressed")
    parser.add_argument("--at-once", type=int, default=12, help="turns at a time, >= 1")
    parser.add_argument("--fragment", type=int, default=120, help="requests before measuring")
    parser.add_argument(
        "--pool", default="", help=f"KV cache of each engine; {POOL}, or {CPU_POOL} with --cpu"
    )
    parser.add_argument(
        "--p-pool", default="", help="KV cache of P if it is another; only with --parts pressed"
    )
    parser.add_argument("--cpu", action="store_true", help="rehearse with vLLM's CPU build")
    options = parser.parse_args(argv)
    options.parts, options.arms = options.parts.split(","), options.arms.split(",")
    options.pool = options.pool or (CPU_POOL if options.cpu else POOL)
    wrong = mistake(options)
    if wrong:
        parser.error(wrong)
    return options


def mistake(options: argparse.Namespace) -> str:
    """What is wrong with the options, and the cure; empty if nothing is."""
    loads = [part for part in options.parts if part in LOADS]
    for option, known in (("parts", PARTS), ("arms", ARMS)):
        unknown = set(getattr(options, option)) - set(known)
        if unknown:
            return f"--{option}: unknown {', '.join(sorted(unknown))}; known: {', '.join(known)}"
    if options.cpu and loads and "nixl" in options.arms:
        return "--cpu rehearses --arms kvferry,off only"
    if "pressed" in options.parts and len(options.parts) > 1:
        return "--parts: pressed wants a small P, the others do not: measure it by itself"
    if ("pressed" in options.parts) != bool(options.p_pool):
        return "--p-pool: --parts pressed needs it, and the others are measured without"
    if options.rounds < 1 or options.at_once < 1:
        return "--rounds and --at-once: at least 1"
    turns = PRESSED_TURNS * (options.at_once + 1) if "pressed" in options.parts else MIXED_TURNS[1]
    if loads and options.requests < options.rounds * turns:
        return f"--requests: at least {turns} a round, {options.rounds * turns} here"
    return ""


def serve(bench: Bench, options: argparse.Namespace) -> dict[str, Family]:
    """Start the servers that the parts and arms need, and wait for them; the family of each arm."""
    model = bench.model(options.model, options.shape)
    longest = PRESSED_LONGEST if options.p_pool else LONGEST
    sizes, p_sizes = (
        bench.sizes(pool, longest, cpu_pool=pool)
        for pool in (options.pool, options.p_pool or options.pool)
    )
    bench.ledger()
    ferry = Ferry()
    ferry.serve(bench, model, sizes, p_sizes)
    families: dict[str, Family] = {"kvferry": ferry, "off": ferry}
    if "nixl" in options.arms and set(options.parts) & set(LOADS):
        native = Native(offload=False)
        native.serve(bench, model, sizes, p_sizes)
        families["nixl"] = native
    bench.wait_up()
    return families


def main() -> None:
    options = parse()
    began_s = time.monotonic()
    record = Record(options.out / "slowdown.json")
    with Bench(cpu=options.cpu) as bench:
        families = serve(bench, options)
        ferry = families["kvferry"]
        ports = {"p": ferry.p, "d": ferry.d}
        pools = {side: pool_tokens(get(port, "/metrics")) for side, port in ports.items()}
        record.put("pool_tokens", pools)
        loads = [
            LOADS[part](options.requests, options.rounds, cpu=options.cpu)
            for part in options.parts
            if part in LOADS
        ]
        wrong = fits(loads[0], pools) if "pressed" in options.parts else ""
        if wrong:
            raise SystemExit(wrong)
        prompts = Prompts(500 if options.cpu else 128_000)
        longest = 500 if options.cpu else 6000
        fragment(list(dict.fromkeys(families.values())), prompts, options.fragment, longest)
        if "steps" in options.parts:
            record.put("steps", Steps(ferry, prompts, options).measure())
        arms = [Arm(name, families[name], reuse=name != "off") for name in options.arms]
        rounds = Rounds(arms, prompts, record, at_once=options.at_once)
        if loads:
            rounds.warm_up()
        for load in loads:
            rounds.measure(load)
        record.put("took_s", round(time.monotonic() - began_s, 1))


if __name__ == "__main__":
    main()
