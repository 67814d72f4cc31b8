"""What a lost or frozen coordinator costs: time to the next decision, and plans that came late.

Three `kvferry coordinator` processes on one nats-server, and nodes that ask for plans at a steady
pace with the settings of production. ``python -m tests.bench.bench_failover`` prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.conftest import NAMES
from tests.chaos.load import Load, failed, outcomes, usual_load
from tests.chaos.load_process import IDLE, Asked
from tests.chaos.replicas import Replicas, in_order
from tests.chaos.servers import NatsCluster

MODES = ("pause", "resume")


def spent(load: Load, seconds: float) -> list[Asked]:
    """What is asked from now on for so long."""
    load.report()
    time.sleep(seconds)
    return load.report().asked


def shares(asked: list[Asked]) -> dict[str, Any]:
    """How many plans, how many without what is held, and how long they took."""
    took = sorted(one.took_ms for one in asked)
    return {
        "plans": len(asked),
        "plans_failed": len(failed(asked)),
        "failed_share": round(len(failed(asked)) / len(asked), 5),
        "outcomes": dict(outcomes(asked)),
        "ms_p50": round(statistics.median(took), 2),
        "ms_p99": round(took[len(took) * 99 // 100], 2),
    }


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All phases on one ledger, one after the other."""
    with (
        NatsCluster(folder / "nats", 1) as cluster,
        Replicas(cluster.url, folder) as replicas,
    ):
        for name in NAMES:
            replicas.start(name)
        replicas.wait_serving(*NAMES)
        with usual_load(cluster.url, folder, args.plans_per_s) as load:
            idle = spent(load, args.span_s)
            frozen: list[Asked] = []
            for _ in range(args.rounds):
                # Who answers now: that is who costs most.
                answering = next(one.replica for one in reversed(idle + frozen) if one.replica)
                chosen = replicas.processes[answering]
                chosen.freeze()
                frozen += spent(load, args.span_s)
                chosen.thaw()
                replicas.wait_serving(*NAMES)
            took: list[float] = []
            killed: list[Asked] = []
            load.report()
            for nth in range(args.rounds):
                victim = replicas.leader()
                killed_s = time.monotonic()
                replicas.processes[victim].kill()
                survivors = [name for name in NAMES if name != victim]
                took.append(replicas.decide(survivors, MODES[nth % 2], node=IDLE) - killed_s)
                replicas.start(victim)
                replicas.wait_serving(*NAMES)
                killed += load.report().asked
            for name in NAMES:
                replicas.processes[name].terminate()
                replicas.start(name)
                replicas.wait_serving(name)
            rolled = load.report().asked
        in_order(replicas.decisions())
    return {
        "failover_s": round(max(took), 3),
        "failover_s_median": round(statistics.median(took), 3),
        "plans": len(killed) + len(rolled),
        "plans_failed": len(failed(killed)) + len(failed(rolled)),
        "plans_per_s": args.plans_per_s,
        "undisturbed": shares(idle),
        "frozen_replica": shares(frozen),
        "killed_leader": shares(killed),
        "rolling_restart": shares(rolled),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="leaders killed, replicas frozen")
    parser.add_argument("--plans-per-s", type=float, default=200.0)
    parser.add_argument("--span-s", type=float, default=3.0, help="seconds of load in a phase")
    parser.add_argument("--json", type=Path, default=None, help="a file to write it to as well")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvferry-failover-") as folder:
        found = json.dumps(measure(args, Path(folder)))
    if args.json is not None:
        args.json.write_text(found + "\n")
    sys.stdout.write(found + "\n")


if __name__ == "__main__":
    main()
