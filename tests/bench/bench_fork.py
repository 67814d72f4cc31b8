"""How long until every node of a fork burst has the prefix. Prints JSON lines.

Forty requests want a prefix of 40,000 tokens (5.2 GB) that one node holds. ``served_in_turn_ms`` is
by the shipped planner, ``all_from_one_ms`` is one transfer from that node to each, all at once.
Nodes, links (in and out shared by what uses them) and the ledger's delay of up to 0.1 s are
simulated; choices and waits are the shipped planner's.

Run: ``python -m tests.bench.bench_fork``
"""

from __future__ import annotations

import json
from statistics import mean

from tests.unit.core.fork import Burst

SEEDS = 10


def main() -> None:
    """Report bursts of several sizes over several links."""
    for nodes, requests in ((8, 40), (16, 80), (31, 155)):
        for gb_per_s in (10, 40):
            bursts = [
                Burst(
                    nodes=nodes,
                    requests=requests,
                    link_bytes_per_ms=gb_per_s * 1e6,
                    prefill_ms=20_000.0,
                    seed=seed,
                )
                for seed in range(SEEDS)
            ]
            in_turn_ms = [burst.run() for burst in bursts]
            one_ms = bursts[0].size / bursts[0].rate
            line = {
                "nodes": nodes,
                "requests": requests,
                "link_gb_per_s": gb_per_s,
                "one_transfer_ms": round(one_ms),
                "served_in_turn_ms": {
                    "mean": round(mean(in_turn_ms)),
                    "max": round(max(in_turn_ms)),
                },
                "all_from_one_ms": round(nodes * one_ms),
                "speedup": round(nodes * one_ms / mean(in_turn_ms), 2),
                "most_from_one_node": max(max(one.sent.values()) for one in bursts),
                "plans_asked": round(mean(one.asked for one in bursts)),
                "recomputed": sum(len(one.recomputed) for one in bursts),
            }
            print(json.dumps(line))


if __name__ == "__main__":
    main()
