"""Three nodes without an engine: one offers a prompt, the next asks for plans of it all the time,
and the last only lives, so that a scenario may pause it.

They are the shipped agent and plan client in a process of their own. Started with one JSON object
(:class:`Order`) as argument; ``report`` on stdin is answered with one line (:class:`Report`) of
what was asked since the last one; the end of stdin ends it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time

import msgspec
from tests.unit.node_agent.support import BOUND_S, SPACE, identity, offer, wait_until

from kvferry.core.messages import PlanAnswer, PlanRequest
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.outbox.outbox import Outbox

BLOCKS = 32
ANSWERED = "answered"
IDLE = "x0"
OFFER_EVERY_S = 0.2
TICK_MS = 5.0
STALL_MS = 5.0
"""The asking agent's thread counts as standing still when a timer comes so late."""
FOUND_IN_A_ROW = 30


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    url: str
    plans_per_s: float
    plan_deadline_ms: float
    hedge_ms: float


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """One plan."""

    at: float
    """When it was asked, seconds of the system's monotonic clock."""
    took_ms: float
    outcome: str
    """``answered`` with the holder as candidate, else the word for why not."""
    replica: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the plans that ended since the last report."""

    asked: list[Asked]
    open: int
    """Plans under way now."""
    states: dict[str, str]
    """Of all agents."""
    stalls: list[tuple[float, float]]
    """When the asking agent's own thread stood still, from and to."""


class Load:
    """Asks at a steady pace, whatever becomes of the plans before."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._ended: list[Asked] = []
        self._stalls: list[tuple[float, float]] = []
        self._ticking = False
        self._begun = 0
        self._counted = 0
        self._outboxes = {"d0": Outbox(), "p0": Outbox(), IDLE: Outbox()}
        self._agents = {
            name: NodeAgent(
                NodeSettings(
                    nats_url=order.url,
                    node=name,
                    plan_deadline_ms=order.plan_deadline_ms,
                    hedge_ms=order.hedge_ms,
                ),
                outbox,
            )
            for name, outbox in self._outboxes.items()
        }
        self._kept = offer("o1", BLOCKS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_asking, name="load")

    def start(self) -> None:
        """Join, and wait until a plan finds what is offered."""
        for number, (name, agent) in enumerate(self._agents.items(), 1):
            agent.start()
            agent.join(
                identity(name * 8, address=f"127.0.0.1:{number}", backends=("tcp",), blocks=1000)
            )
        self._outboxes["d0"].facts(self._kept)
        # Several in a row, for the replicas hear of it one after the other.
        wait_until(
            lambda: all(self._found() for _ in range(FOUND_IN_A_ROW)),
            "plans find the offer",
            4 * BOUND_S,
        )
        self._take()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for agent in self._agents.values():
            agent.stop(5.0)

    def report(self) -> Report:
        return Report(
            asked=self._take(),
            open=self._begun - self._counted,
            states={name: agent.state for name, agent in self._agents.items()},
            stalls=self._stalls_since(),
        )

    def _tick(self, due_s: float) -> None:
        """Again and again on the asking agent's thread, until it closes."""
        now_s = time.monotonic()
        if (now_s - due_s) * 1000 > STALL_MS:
            self._stalls.append((due_s, now_s))
        next_s = now_s + TICK_MS / 1000
        self._agents["p0"].plans.later(TICK_MS, lambda: self._tick(next_s))

    def _stalls_since(self) -> list[tuple[float, float]]:
        stalls, self._stalls = self._stalls, []
        return stalls

    def _take(self) -> list[Asked]:
        ended, self._ended = self._ended, []
        self._counted += len(ended)
        return ended

    def _found(self) -> bool:
        self._ask()
        wait_until(lambda: self._ended, "a plan ends")
        return self._take()[-1].outcome == ANSWERED

    def _ask(self) -> None:
        at = time.monotonic()
        request = PlanRequest(
            space=SPACE,
            node="p0",
            hashes=self._kept.hashes,
            stride=1,
            block_size=128,
            prompt_tokens=128 * BLOCKS + 3,
        )

        def done(answer: PlanAnswer | None, miss: str) -> None:
            took_ms = (time.monotonic() - at) * 1000
            outcome, replica = miss, ""
            if answer is not None:
                replica = answer.replica
                found = [one.node for one in answer.candidates] == ["d0"]
                outcome = ANSWERED if found else answer.miss or "wrong"
            self._ended.append(Asked(at, took_ms, outcome, replica))
            if not self._ticking:  # Here, for this is the agent's thread.
                self._ticking = True
                self._tick(time.monotonic())

        self._begun += 1
        self._agents["p0"].plans.ask(request, done)

    def _keep_asking(self) -> None:
        pause_s = 1.0 / self._order.plans_per_s
        due = time.monotonic()
        offer_due, revision = due, 1
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            self._ask()
            # A machine that was busy elsewhere is not caught up with in a burst.
            due = max(due + pause_s, time.monotonic() - pause_s)
            if time.monotonic() >= offer_due:
                revision += 1
                self._outboxes["d0"].facts(offer("o1", BLOCKS, revision))
                offer_due += OFFER_EVERY_S


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    load = Load(msgspec.json.decode(sys.argv[1], type=Order))
    try:
        load.start()
        print("ready", flush=True)
        for line in sys.stdin:
            if line.strip() == "report":
                print(msgspec.json.encode(load.report()).decode(), flush=True)
    finally:
        load.stop()


if __name__ == "__main__":
    main()
