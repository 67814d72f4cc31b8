"""Time to the first token of turn 2: recompute, kvferry, vLLM's NixlConnector, P warm; one run."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from equal_outputs import hint_of
from servers import Bench, post, prefill, stream

VOCABULARY = 128_000
NIXL_FIRST = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
FERRY, NIXL = (8100, 8200), (8101, 8201)
"""Ports of P and D of each family."""


class Family:
    """One P and one D that hand KV to each other in one way."""

    def __init__(self, ports: tuple[int, int], *, nixl: bool) -> None:
        self.p, self.d = ports
        self.nixl = nixl

    def turn(
        self, ids: list[int], tokens: int, last: dict[str, Any] | None
    ) -> tuple[float, list[int], dict[str, Any] | None, dict[str, Any]]:
        """P, then D with P's parameters: seconds to D's first token, tokens, D's and P's params."""
        began = time.perf_counter()
        if self.nixl:
            from_p = prefill(self.p, ids, last or NIXL_FIRST)
            given = from_p
        else:
            from_p = prefill(self.p, ids, hint_of(last) if last else {"kvferry": {"reuse": "off"}})
            given = hint_of(from_p)
        spent = time.perf_counter() - began
        body: dict[str, Any] = {"model": "m", "prompt": ids, "max_tokens": tokens}
        body |= {"temperature": 0, "ignore_eos": True, "kv_transfer_params": given}
        first, answer, from_d = stream(self.d, body)
        return spent + first, answer, from_d, from_p

    def forget_p(self) -> None:
        """Empty P's own prefix cache."""
        for _ in range(60):
            reply = post(self.p, "/reset_prefix_cache?reset_external=true", {}).read()
            if json.loads(reply or b"{}").get("success", True):
                return
            time.sleep(0.1)
        print("P's cache could not be reset", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--sizes", default="2048,8192,16384")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--nixl", action="store_true")
    parser.add_argument("--fragment", type=int, default=240)
    parser.add_argument("--pool", default="36G", help="KV cache of each engine")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.out)
    # A fixed pool, for two engines that start on one GPU disturb each other's memory profile.
    shared = ["--load-format", "dummy", "--max-model-len", "70000"]
    shared += ["--kv-cache-memory-bytes", options.pool, "--gpu-memory-utilization", "0.3"]
    shared += ["--max-num-batched-tokens", "16384"]
    families = [Family(FERRY, nixl=False)]
    try:
        bench.ledger()
        # No leases here: they would rightly refuse the cache resets between the arms.
        ferry = {"lease_budget": 0.0, "verify": "off"}
        bench.serve(options.model, 0, FERRY[0], bench.kvferry("p0", **ferry), *shared)
        bench.serve(options.model, 1, FERRY[1], bench.kvferry("d0", **ferry), *shared)
        if options.nixl:
            native = {
                "kv_connector": "NixlConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "bidirectional_kv_xfer": True,
                    "decoder_kv_blocks_ttl": 20,
                    "backends": ["UCX"],
                },
            }
            bench.serve(options.model, 0, NIXL[0], native, *shared)
            bench.serve(options.model, 1, NIXL[1], native, *shared)
            families.append(Family(NIXL, nixl=True))
        bench.wait_up()
        measure(families, [int(s) for s in options.sizes.split(",")], options)
    finally:
        bench.stop()


def measure(families: list[Family], sizes: list[int], options: argparse.Namespace) -> None:
    """Fragment, then every size and arm, and a line of JSON a size."""
    draw = random.Random(1)

    def fresh(count: int) -> list[int]:
        return [draw.randrange(10, VOCABULARY) for _ in range(count)]

    for family in families:
        family.turn(fresh(512), 8, None)
        family.turn(fresh(8192), 8, None)
    began = time.monotonic()
    loads = [
        (fresh(draw.randrange(300, 6000)), draw.randrange(4, 40)) for _ in range(options.fragment)
    ]
    with ThreadPoolExecutor(12 * len(families)) as pool:
        jobs = [pool.submit(f.turn, ids, n, None) for ids, n in loads for f in families]
        for job in jobs:
            job.result()
    print(f"fragmented in {time.monotonic() - began:.0f} s", flush=True)
    arms = [("recompute", families[0]), ("kvferry", families[0]), ("p_warm", families[0])]
    arms += [("nixl", f) for f in families if f.nixl]
    for size in sizes:
        took: dict[str, list[float]] = {name: [] for name, _ in arms}
        notes: dict[str, Any] = {}
        for rep in range(options.reps):
            shift = rep % len(arms)
            for name, family in arms[shift:] + arms[:shift]:
                history = fresh(size)
                _, answer, from_d, _ = family.turn(history, 64, None)
                text = history + answer + fresh(256)
                if name != "p_warm":
                    family.forget_p()
                reuse = name in ("kvferry", "nixl")
                seconds, _, _, from_p = family.turn(text, 2, from_d if reuse else None)
                took[name].append(seconds * 1000)
                notes[name] = from_p.get("kvferry", {}).get("report")
        medians = {name: statistics.median(values) for name, values in took.items()}
        print(
            json.dumps(
                {
                    "size": size,
                    "ttft_ms": {
                        name: [round(medians[name], 1), round(min(v), 1), round(max(v), 1)]
                        for name, v in took.items()
                    },
                    "recompute_over": {
                        name: round(medians["recompute"] / medians[name], 2) for name in medians
                    },
                    "over_floor": {
                        name: round(medians[name] / medians["p_warm"], 2) for name in medians
                    },
                    "reports": notes,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
