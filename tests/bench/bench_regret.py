"""What a fourfold change of a link costs, chosen by what the ledger teaches. Prints JSON lines.

Each line is one change: regret as a share of an oracle's cost over the 40 requests before it
(``before``), the 20 after it (``at_once``), what the first of these alone lost (``first``), the
rest of the 20 (``learned``), the next 20 (``next20``) and the 20 after those (``settled``);
median, 95th percentile and worst of the seeds. The last lines are links that were never seen
before. Requests are simulated, the fold and the choices are the shipped ones.

Run: ``python -m tests.bench.bench_regret``
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median

from tests.unit.core.regret import Lost, after_change, first_met

SEEDS = 300
CHANGES = [(0.3, 0.25), (0.5, 0.25), (0.8, 0.25), (1.2, 4.0), (2.0, 4.0), (3.0, 4.0), (5.0, 4.0)]
NEW = [0.3, 0.8, 1.2, 2.0, 5.0]
SPANS = ("before", "at_once", "first", "learned", "next20", "settled")


def main() -> None:
    """Report every change, and every new link, with little and with much noise."""
    for noise in (0.1, 0.2):
        for before, factor in CHANGES:
            runs = [after_change(before, factor, seed, noise) for seed in range(SEEDS)]
            _report(runs, move_over_recompute_before=before, link_speed_factor=factor, noise=noise)
        for ratio in NEW:
            runs = [first_met(ratio, seed, noise) for seed in range(SEEDS)]
            _report(runs, move_over_recompute=ratio, noise=noise)


def _report(runs: Sequence[Lost], **what: float) -> None:
    line: dict[str, object] = {**what, "seeds": len(runs)}
    for name in SPANS:
        values = sorted(getattr(run, name) for run in runs)
        line[name] = {
            "median": round(median(values), 4),
            "p95": round(values[len(values) * 95 // 100], 4),
            "max": round(values[-1], 4),
        }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
