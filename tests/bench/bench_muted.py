"""What it costs that one of two coordinators is mute: frozen, or cut off without a word.

Two `kvferry coordinator` processes on one nats-server, one of them in a network namespace of its
own, and a node that asks for plans at a steady pace with the settings of production. Undisturbed,
frozen and cut-off spans take turns, so that each meets the same machine.
``python -m tests.bench.bench_muted`` prints one JSON line. Cutting off needs namespaces; without
them that part is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.bench_failover import shares
from tests.chaos.load import failed, usual_load
from tests.chaos.load_process import Asked, Report
from tests.chaos.netns import Namespace, NotPermitted
from tests.chaos.replicas import Replicas
from tests.chaos.servers import NatsCluster

from kvferry.node.agent.settings import NodeSettings

APART, HERE = "c-a", "c-b"


class Spans:
    """What was asked in all spans of one kind."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []
        self._own = 0

    def add(self, report: Report) -> None:
        self._asked += report.asked
        self._own += sum(_own_fault(one, report.stalls) for one in failed(report.asked))

    def shares(self) -> dict[str, Any]:
        """Also how many failed while the asking thread itself stood still, which no replica and no
        way of asking could have helped."""
        others = len(failed(self._asked)) - self._own
        return shares(self._asked) | {
            "failed_by_asker": self._own,
            "failed_by_others_share": round(others / len(self._asked), 5),
        }


def _own_fault(one: Asked, stalls: list[tuple[float, float]]) -> bool:
    """Whether the asker stood still for more than half of the time that the plan had."""
    until = one.at + one.took_ms / 1000
    still_s = sum(max(0.0, min(to, until) - max(begin, one.at)) for begin, to in stalls)
    return still_s * 1000 > NodeSettings(nats_url="", node="x").plan_deadline_ms / 2


def measure(args: argparse.Namespace, folder: Path, apart: Namespace | None) -> dict[str, Any]:
    """Spans in turn on one ledger."""
    host = apart.host if apart is not None else "127.0.0.1"
    with (
        NatsCluster(folder / "nats", 1, host=host) as cluster,
        Replicas(cluster.url, folder) as replicas,
    ):
        replicas.start(APART, within=apart.within if apart is not None else ())
        replicas.start(HERE)
        replicas.wait_serving(APART, HERE)
        with usual_load(cluster.url, folder, args.plans_per_s) as load:
            found = {"undisturbed": Spans(), "frozen": Spans(), "cut_off": Spans()}

            def span(kind: str, begin: Callable[[], None], end: Callable[[], None]) -> None:
                load.report()
                begin()
                time.sleep(args.span_s)
                found[kind].add(load.report())
                end()
                replicas.wait_serving(APART, HERE)

            for nth in range(args.rounds):
                span("undisturbed", lambda: None, lambda: None)
                muted = replicas.processes[(APART, HERE)[nth % 2]]
                span("frozen", muted.freeze, muted.thaw)
                if apart is not None:
                    span("cut_off", apart.cut, apart.heal)
    if apart is None:
        del found["cut_off"]
    return {"plans_per_s": args.plans_per_s} | {kind: one.shares() for kind, one in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="spans of each kind")
    parser.add_argument("--plans-per-s", type=float, default=200.0)
    parser.add_argument("--span-s", type=float, default=3.0, help="seconds of load in a span")
    parser.add_argument("--json", type=Path, default=None, help="a file to write it to as well")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvferry-muted-"))
        apart: Namespace | None = None
        with contextlib.suppress(NotPermitted):
            apart = stack.enter_context(Namespace(0))
        found = json.dumps(measure(args, Path(folder), apart))
    if args.json is not None:
        args.json.write_text(found + "\n")
    sys.stdout.write(found + "\n")


if __name__ == "__main__":
    main()
