"""What a fourfold change of a link costs, chosen by what the ledger teaches. Prints JSON lines.

Each line is one change: regret as a share of an oracle's cost over the 40 requests before it, the
20 after it (at_once; without what the first of them lost: learned), and the 40 after those; median,
95th percentile and worst of the seeds. Requests are simulated, the fold and the choices are the
shipped ones.

Run: ``python -m tests.bench.bench_regret``
"""

from __future__ import annotations

import json
from statistics import median

from tests.unit.core.regret import after_change

SEEDS = 100
CHANGES = [(0.3, 0.25), (0.5, 0.25), (0.8, 0.25), (1.2, 4.0), (2.0, 4.0), (3.0, 4.0), (5.0, 4.0)]


def main() -> None:
    """Report every change with little and with much noise."""
    for noise in (0.1, 0.2):
        for before, factor in CHANGES:
            runs = [after_change(before, factor, seed, noise) for seed in range(SEEDS)]
            line: dict[str, object] = {
                "move_over_recompute_before": before,
                "link_speed_factor": factor,
                "noise": noise,
                "seeds": SEEDS,
            }
            for name in ("before", "at_once", "learned", "settled"):
                values = sorted(getattr(run, name) for run in runs)
                line[name] = {
                    "median": round(median(values), 4),
                    "p95": round(values[len(values) * 95 // 100], 4),
                    "max": round(values[-1], 4),
                }
            print(json.dumps(line))


if __name__ == "__main__":
    main()
