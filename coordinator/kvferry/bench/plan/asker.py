"""Nodes that ask for plans at a steady rate: ``python -m kvferry.bench.plan.asker ORDER``.

They are shipped agents without an engine, asked from a thread of their own as an engine would.
Prints one :class:`Asked` as JSON.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvferry.bench.history.shape import BLOCK_BYTES, SPACE
from kvferry.core.messages import PlanAnswer, PlanRequest
from kvferry.ids import SHORT_BYTES, sample_stride
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.agent.settings import Identity, NodeSettings
from kvferry.node.outbox.outbox import Outbox

READY_WAIT_S = 60.0
DEADLINE_MS = 2_000.0
"""Far beyond what a node waits for (40 ms), so that the tail is seen and not cut off."""
LOOK_S = 0.01


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of askers is to do."""

    url: str
    coordinator_pid: int
    names: tuple[str, ...]
    chains_file: str
    """Chains that are held, each ``hashes`` sampled hashes long, one after the other."""
    hashes: int
    block_size: int
    plans_per_s: float
    warm_s: float
    seconds: float
    seed: int


class Asked(msgspec.Struct, kw_only=True):
    """What became of the plans that were asked for after the warm-up."""

    took_ms: list[float] = []
    """From asking until the answer was there, in the order of the answers."""
    misses: dict[str, int] = {}
    """Answers without a candidate, and plans without an answer, by why."""
    asked: int = 0
    span_s: float = 0.0
    """From the first of them to the last answer."""
    late_ms_p99: float = 0.0
    """How late the asking thread itself was."""
    cpu_s: float = 0.0
    """Of this process, meanwhile."""
    coordinator_cpu_s: float = 0.0


class _Asking:
    """One plan under way."""

    def __init__(self, askers: Askers) -> None:
        self._askers = askers
        self._begun = time.perf_counter()

    def done(self, answer: PlanAnswer | None, miss: str) -> None:
        self._askers.ended(
            (time.perf_counter() - self._begun) * 1000,
            miss if answer is None else answer.miss,
            answered=answer is not None,
        )


class Askers:
    """All nodes of one process."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._random = random.Random(order.seed)
        self._lock = threading.Lock()
        self._open = 0
        self._asked = Asked()
        self._agents = [
            NodeAgent(
                NodeSettings(nats_url=order.url, node=name, plan_deadline_ms=DEADLINE_MS), Outbox()
            )
            for name in order.names
        ]

    def run(self) -> Asked:
        """Join, ask for the time given, leave."""
        for number, agent in enumerate(self._agents):
            agent.start()
            agent.join(
                Identity(
                    space=SPACE,
                    incarnation=f"{self._order.seed * 1_000 + number:016x}",
                    block_size=self._order.block_size,
                    backends=("tcp",),
                    block_bytes=BLOCK_BYTES,
                )
            )
        try:
            self._await(
                lambda: all(one.plans.available() and one.state == "joined" for one in self._agents)
            )
            requests = self._requests()
            # What is collected here would show in the tail as if it were the plan's.
            gc.collect()
            gc.freeze()
            self._ask(requests, self._order.warm_s)
            self._asked = Asked()
            pid = self._order.coordinator_pid
            begun, cpu, theirs = time.perf_counter(), time.process_time(), _cpu_s(pid)
            lateness = self._ask(requests, self._order.seconds)
            self._asked.span_s = time.perf_counter() - begun
            self._asked.cpu_s = time.process_time() - cpu
            self._asked.coordinator_cpu_s = _cpu_s(pid) - theirs
            self._asked.late_ms_p99 = sorted(lateness)[int(len(lateness) * 0.99)]
        finally:
            for agent in self._agents:
                agent.stop()
        return self._asked

    def ended(self, took_ms: float, miss: str, *, answered: bool) -> None:
        """A plan has an answer, or none. On an agent's thread."""
        with self._lock:
            self._open -= 1
            if answered:
                self._asked.took_ms.append(took_ms)
            if miss:
                self._asked.misses[miss] = self._asked.misses.get(miss, 0) + 1

    def _ask(self, requests: list[PlanRequest], seconds: float) -> list[float]:
        """Ask with exponential pauses, whatever becomes of the plans before; how late, in ms."""
        lateness = []
        due = time.perf_counter()
        end = due + seconds
        number = 0
        while due < end:
            now = time.perf_counter()
            if now < due:
                time.sleep(due - now)
            lateness.append((time.perf_counter() - due) * 1000)
            agent = self._agents[number % len(self._agents)]
            with self._lock:
                self._open += 1
                self._asked.asked += 1
            agent.plans.ask(requests[number % len(requests)], _Asking(self).done)
            number += 1
            due += self._random.expovariate(self._order.plans_per_s)
        self._await(lambda: not self._open)
        return lateness

    def _requests(self) -> list[PlanRequest]:
        """A half of them held as a whole, a quarter up to somewhere, a quarter nowhere."""
        order, size = self._order, self._order.hashes * SHORT_BYTES
        blob = Path(order.chains_file).read_bytes()
        chains = [blob[at : at + size] for at in range(0, len(blob), size)]
        stride = sample_stride(order.block_size)
        made = []
        for number in range(256 * len(order.names)):
            chain = self._random.choice(chains)
            kept = (size, size, self._random.randrange(order.hashes) * SHORT_BYTES, 0)[
                self._random.randrange(4)
            ]
            made.append(
                PlanRequest(
                    space=SPACE,
                    node=order.names[number % len(order.names)],
                    hashes=chain[:kept] + self._random.randbytes(size - kept),
                    stride=stride,
                    block_size=order.block_size,
                    prompt_tokens=order.hashes * stride * order.block_size + 1,
                )
            )
        return made

    def _await(self, condition: Callable[[], bool]) -> None:
        """
        Raises:
            TimeoutError: it did not come true in time.
        """
        until = time.monotonic() + READY_WAIT_S
        while not condition():
            if time.monotonic() > until:
                states = [f"{one.state} ({one.why})" for one in self._agents]
                raise TimeoutError(f"no plans within {READY_WAIT_S:g} s: {states}")
            time.sleep(LOOK_S)


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far; 0 where it cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Ask, and print what came of it."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    sys.stdout.write(msgspec.json.encode(Askers(order).run()).decode() + "\n")


if __name__ == "__main__":
    main()
