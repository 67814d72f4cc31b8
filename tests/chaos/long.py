"""The long run of ``make chaos``: conversations on real engines while everything fails in turn.

Two vLLM engines, three coordinators and one or three nats-servers, with network namespaces where
they are permitted. Each answer is compared with one undisturbed engine's; at the end the books of
the whole ledger must balance. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.conftest import NAMES
from tests.chaos.conversations import Conversations
from tests.chaos.faults import Fault, World, faults, hold
from tests.chaos.fleet import Fleet
from tests.chaos.netns import Namespace, NotPermitted
from tests.chaos.replicas import Replicas, in_order
from tests.chaos.servers import HOST, NatsCluster
from tests.e2e import conservation
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import View

from kvferry_connectors.demo.model import TINY, ensure_model

QUIET_ROUNDS = 2
"""Rounds between two faults."""


@contextlib.contextmanager
def namespaces() -> Iterator[tuple[Namespace, Namespace] | tuple[None, None]]:
    """One for an engine and one for a coordinator; none where they are not permitted."""
    with contextlib.ExitStack() as stack:
        try:
            both = stack.enter_context(Namespace(0)), stack.enter_context(Namespace(1))
        except NotPermitted:
            yield None, None
            return
        yield both


@contextlib.contextmanager
def world(folder: Path, model: Path, servers: int) -> Iterator[World]:
    """All processes, up and joined."""
    with contextlib.ExitStack() as stack:
        far_engine, far_replica = stack.enter_context(namespaces())
        host = far_engine.host if far_engine else HOST
        cluster = stack.enter_context(NatsCluster(folder / "nats", servers, host=host))
        replicas = stack.enter_context(
            Replicas(cluster.url, folder, stream_replicas=len(cluster.servers))
        )
        fleet = Fleet(model, cluster.url, folder, far_engine)
        made = World(cluster, replicas, fleet, far_engine, far_replica)
        for name in NAMES:
            made.start_replica(name)
        replicas.wait_serving(*NAMES)
        stack.enter_context(fleet)
        yield made


def endure(world: World, talks: Conversations, fault: Fault) -> float:
    """One fault under load; seconds from its end until all is as before."""
    undo: list[Any] = []
    struck_s = time.monotonic()

    def strike() -> None:
        undo.append(fault.strike(world))
        if fault.blocks_turns:
            hold(fault, struck_s)
            undo.pop()()

    talks.round(strike)
    if undo:
        while time.monotonic() < struck_s + fault.hold_s:
            talks.round()
        undo.pop()()
    undone_s = time.monotonic()
    world.replicas.wait_serving(*NAMES)
    for verb in ("observe", "resume"):
        world.decide(verb)
    world.fleet.wait_joined()
    back_s = time.monotonic() - undone_s
    talks.round()
    return back_s


def settle(world: World) -> dict[str, Any]:
    """Assert that nothing is lost, nothing wrong and nothing open."""
    conservation.check(View(world.cluster.url), world.fleet.engines.values())
    world.fleet.blocks_return()
    history = world.replicas.decisions()
    return {"decisions": len(history), "leaders": len(in_order(history))}


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Until the time is up, and each fault came at least once."""
    model = ensure_model(folder / "tiny", TINY)
    reference = EngineProcess(model, "reference", connector=None)
    draw = random.Random(args.seed)
    struck: Counter[str] = Counter()
    back: dict[str, float] = {}
    try:
        with world(folder, model, args.servers) as made:
            reference.wait_ready()
            talks = Conversations(made.fleet, reference, args.seed)
            known = faults(made)
            until_s = time.monotonic() + 60.0 * args.minutes
            while time.monotonic() < until_s or len(struck) < len(known):
                for fault in draw.sample(known, len(known)):
                    for _ in range(QUIET_ROUNDS):
                        talks.round()
                    took_s = endure(made, talks, fault)
                    struck[fault.name] += 1
                    back[fault.name] = round(max(took_s, back.get(fault.name, 0.0)), 2)
                    sys.stderr.write(f"{fault.name}: back after {took_s:.1f} s\n")
            return {
                "seed": args.seed,
                "servers": args.servers,
                "faults": dict(struck),
                "back_s_max": back,
                "conversations": dict(talks.counts),
                **settle(made),
            }
    finally:
        reference.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="at least one of each fault")
    parser.add_argument("--servers", type=int, choices=(1, 3), default=3, help="nats-servers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="a file to write it to as well")
    parser.add_argument("--keep", type=Path, default=None, help="a new folder for all logs")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = args.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvferry-")))
        elif folder.exists() and any(folder.iterdir()):
            parser.error(f"--keep {folder} is not empty; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        found = json.dumps(run(args, folder))
    if args.json is not None:
        args.json.write_text(found + "\n")
    sys.stdout.write(found + "\n")


if __name__ == "__main__":
    main()
