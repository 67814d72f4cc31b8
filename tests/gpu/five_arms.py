"""Time to the first token of a conversation's second turn, in five arms, in one run.

``recompute``: P's cache is empty and it computes all. ``kvferry``: P's cache is empty and it pulls
from D. ``nixl``: the same with vLLM's NixlConnector in both directions. ``offload``: P loads its
own copy in host memory, by vLLM's OffloadingConnector. ``p_warm``: P's cache still holds turn 1's
prompt, which is the floor. Each arm has a conversation of its own in each repetition, and the order
of the arms rotates. Pools are fragmented first.

Turn 1 of all conversations of a repetition is served at once before any turn 2 is timed, which
spares minutes; only that of ``nixl`` is served alone just before its turn 2, because D keeps
blocks for it for some seconds only. P's caches are emptied before turn 2; ``p_warm`` then computes
its prompt again, untimed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu.asking import prompt_tokens_by_source
from tests.gpu.families import Family, Ferry, Native, Prompts, Turn, fragment, together
from tests.gpu.figures import Record, spread
from tests.gpu.servers import Bench
from tests.gpu.shape_model import SHAPES
from tests.gpu.stages import stages

FERRY_ARMS = ("recompute", "kvferry", "p_warm")
NATIVE_ARMS = ("nixl", "offload")
ARMS = FERRY_ARMS + NATIVE_ARMS
WARM_PROMPTS = (512, 8192)
CPU_WARM_PROMPTS = (64, 256)


class Conversation:
    """One conversation of one arm: turn 1, and the prompt of turn 2."""

    def __init__(self, arm: str, family: Family, history: list[int], new: list[int]) -> None:
        self.arm = arm
        self.family = family
        self._history = history
        self._new = new
        self.hint: dict[str, Any] | None = None
        self.prompt: list[int] = []

    def first_turn(self, answer: int) -> None:
        turn = self.family.turn(self._history, answer)
        self.prompt = self._history + turn.answer + self._new
        self.hint = turn.hint

    def prepare(self) -> None:
        """What P must hold for this arm, after its cache was emptied."""
        if self.arm == "p_warm":
            self.family.warm_p(self._history)

    def second_turn(self) -> tuple[Turn, dict[str, int]]:
        """The timed turn, and where P's prompt tokens came from, as vLLM counts them."""
        before = prompt_tokens_by_source(self.family.p)
        turn = self.family.turn(
            self.prompt, 2, self.hint if self.arm in ("kvferry", "nixl") else None
        )
        after = prompt_tokens_by_source(self.family.p)
        return turn, {name: after[name] - before.get(name, 0) for name in after}


class Measurement:
    """All sizes and arms over servers that are up."""

    def __init__(self, families: dict[str, Family], nats: str, options: argparse.Namespace) -> None:
        self._families = families
        self._nats = nats
        self._options = options
        self._prompts = Prompts(500 if options.cpu else 128_000, options.seed)

    def warm_up(self) -> float:
        """Compile what is compiled at first use, then fragment; seconds of the latter."""
        families = list(dict.fromkeys(self._families.values()))
        for count in CPU_WARM_PROMPTS if self._options.cpu else WARM_PROMPTS:
            for family in families:
                family.turn(self._prompts.fresh(count), 8)
        longest = 1000 if self._options.cpu else 6000
        return fragment(families, self._prompts, self._options.fragment, longest)

    def size(self, size: int, until_s: float) -> dict[str, Any]:
        """One row; fewer repetitions than asked for where the time runs out."""
        ttft: dict[str, list[float]] = {arm: [] for arm in self._families}
        p_leg: dict[str, list[float]] = {arm: [] for arm in self._families}
        sources: dict[str, Any] = {}
        as_named = dict.fromkeys(self._families, 0)
        reports: dict[str, Any] = {}
        pulls: list[str] = []
        for repetition in range(self._options.reps):
            if time.monotonic() > until_s:
                break
            for conversation in self._repetition(size, repetition):
                arm = conversation.arm
                turn, sources[arm] = conversation.second_turn()
                as_named[arm] += did_as_named(arm, sources[arm])
                ttft[arm].append(turn.ttft_s * 1000)
                p_leg[arm].append(turn.p_s * 1000)
                if turn.report:
                    reports[arm] = turn.report
                if turn.report.get("pulled"):
                    pulls.append(turn.report["request"])
        if not all(ttft.values()):
            return {}
        return {
            "ttft_ms": {arm: spread(values) for arm, values in ttft.items()},
            "p_leg_ms": {arm: spread(values) for arm, values in p_leg.items()},
            "as_named": as_named,
            "p_tokens_by_source": sources,
            "reports": reports,
            "pull_stages": stages(self._nats, pulls) if pulls else {},
            "values_ms": {arm: [round(v, 1) for v in values] for arm, values in ttft.items()},
        }

    def _repetition(self, size: int, repetition: int) -> Any:
        """The conversations, each ready for its second turn, in this repetition's order."""
        options, prompts = self._options, self._prompts
        talks = [
            Conversation(arm, family, prompts.fresh(size), prompts.fresh(options.new))
            for arm, family in self._families.items()
        ]
        shift = repetition % len(talks)
        talks = talks[shift:] + talks[:shift]
        together([lambda t=t: t.first_turn(options.answer) for t in talks if t.arm != "nixl"])
        for family in dict.fromkeys(self._families.values()):
            family.forget_p()
        for talk in talks:
            if talk.arm == "nixl":
                talk.first_turn(options.answer)
                talk.family.forget_p()
            talk.prepare()
            yield talk


def did_as_named(arm: str, sources: dict[str, int]) -> bool:
    """Whether P's prompt tokens came from where the arm says."""
    local = sources.get("local_cache_hit", 0) > 0
    loaded = sources.get("external_kv_transfer", 0) > 0
    return (local, loaded) == (arm == "p_warm", arm in ("kvferry", *NATIVE_ARMS))


def ratios(medians: dict[str, float]) -> dict[str, Any]:
    """Recompute ÷ arm, and arm ÷ floor."""
    found: dict[str, Any] = {}
    if "recompute" in medians:
        found["recompute_over"] = {
            arm: round(medians["recompute"] / value, 2) for arm, value in medians.items()
        }
    if "p_warm" in medians:
        found["over_floor"] = {
            arm: round(value / medians["p_warm"], 2) for arm, value in medians.items()
        }
    return found


def with_earlier(size: str, row: dict[str, Any], earlier: list[dict[str, Any]]) -> dict[str, Any]:
    """``row`` with the ratios over its own arms and those of earlier runs."""
    medians: dict[str, float] = {}
    for run in [*earlier, {"rows": {size: row}}]:
        for arm, figures in run.get("rows", {}).get(size, {}).get("ttft_ms", {}).items():
            medians[arm] = figures["median"]
    return {**row, **ratios(medians), "max_over_median": _widths(row)}


def _widths(row: dict[str, Any]) -> dict[str, float]:
    return {arm: round(f["max"] / f["median"], 2) for arm, f in row["ttft_ms"].items()}


def serve(bench: Bench, arms: list[str], options: argparse.Namespace) -> dict[str, Family]:
    """Start the servers that these arms need; the family of each arm."""
    model = bench.model(options.model, options.shape)
    sizes = bench.sizes(options.pool, options.longest)
    families: dict[str, Family] = {}
    if any(arm in FERRY_ARMS for arm in arms):
        bench.ledger()
        ferry = Ferry()
        # No leases: they would rightly refuse the cache resets between the arms.
        ferry.serve(bench, model, sizes, lease_budget=0.0, verify=options.verify)
        families |= {arm: ferry for arm in arms if arm in FERRY_ARMS}
    if any(arm in NATIVE_ARMS for arm in arms):
        native = Native(offload="offload" in arms)
        native.serve(bench, model, sizes)
        families |= {arm: native for arm in arms if arm in NATIVE_ARMS}
    return {arm: families[arm] for arm in arms}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of five_arms.json")
    parser.add_argument("--model", default="", help="folder; by default one of --shape is made")
    parser.add_argument("--shape", default="llama8b", choices=SHAPES)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--sizes", default="2048,8192,16384,32768,60000", help="tokens of turn 1")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--answer", type=int, default=64, help="tokens generated in turn 1")
    parser.add_argument("--new", type=int, default=256, help="tokens that turn 2 adds")
    parser.add_argument("--fragment", type=int, default=240, help="requests before measuring")
    parser.add_argument("--pool", default="36G", help="KV cache of each engine")
    parser.add_argument("--longest", type=int, default=70_000, help="max-model-len")
    parser.add_argument("--verify", default="off", choices=("off", "sample", "full"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="results to compare with")
    parser.add_argument("--limit-s", type=float, default=520.0, help="begin no repetition later")
    parser.add_argument("--cpu", action="store_true", help="rehearse with vLLM's CPU build")
    options = parser.parse_args(argv)
    unknown = set(options.arms.split(",")) - set(ARMS)
    if unknown:
        parser.error(f"--arms: unknown {', '.join(sorted(unknown))}; known are {', '.join(ARMS)}")
    if options.cpu and set(options.arms.split(",")) & set(NATIVE_ARMS):
        parser.error(f"--cpu rehearses {', '.join(FERRY_ARMS)} only; name them with --arms")
    return options


def main() -> None:
    options = parse()
    began_s = time.monotonic()
    earlier = [json.loads(path.read_text()) for path in options.also]
    record = Record(options.out / "five_arms.json")
    with Bench(cpu=options.cpu) as bench:
        families = serve(bench, options.arms.split(","), options)
        record.put("servers_up_s", round(bench.wait_up(), 1))
        measurement = Measurement(families, bench.nats, options)
        record.put("fragmented_s", round(measurement.warm_up(), 1))
        unfinished = options.sizes.split(",")
        for size in list(unfinished):
            row = measurement.size(int(size), began_s + options.limit_s)
            if not row:
                break
            record.add_row(size, with_earlier(size, row, earlier))
            unfinished.remove(size)
        record.put("unfinished_sizes", unfinished)
        record.put("took_s", round(time.monotonic() - began_s, 1))
    sys.exit(1 if unfinished else 0)


if __name__ == "__main__":
    main()
