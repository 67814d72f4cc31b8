"""All parts of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tests.sim.checks import engine as engine_check
from tests.sim.checks.endings import outcome_needs_room, still_open
from tests.sim.checks.ledger import level
from tests.sim.checks.violations import Violations
from tests.sim.kernel.kernel import Kernel, Process
from tests.sim.kernel.network import Network
from tests.sim.world.clients import Client
from tests.sim.world.connection import Connection
from tests.sim.world.coordinators import Replica
from tests.sim.world.faults import Fate
from tests.sim.world.knobs import Knobs
from tests.sim.world.ledger import LedgerServer
from tests.sim.world.node import Node
from tests.sim.world.operator import Operator
from tests.sim.world.plane import Planes
from tests.sim.world.tilert import Router, Tiles

from kvferry.core.events import Event
from kvferry.node.agent.settings import NodeSettings

DRAIN_S_MAX = 45.0
"""Of virtual time after the last fault; by then everything has ended."""


class Fact(NamedTuple):
    """An event as an engine left it in its outbox."""

    node: str
    life: str
    event: Event


class World:
    """Nodes, clients and what befalls them.

    Attributes:
        nodes: the present process of each name.
        past: all processes that there were, the present ones included.
        facts: every fact that any node handed over, in order.
    """

    def __init__(self, kernel: Kernel, knobs: Knobs) -> None:
        self.kernel, self.knobs = kernel, knobs
        self.violations = Violations(kernel)
        self.network = Network(kernel, latency_s=knobs.latency_s, spike_share=knobs.spike_share)
        kernel.network = self.network
        self.planes = Planes(self.network)
        self.names = [f"n{i}" for i in range(knobs.nodes)]
        self.nodes: dict[str, Node] = {}
        self.past: list[Node] = []
        self.facts: list[Fact] = []
        self.ledger: LedgerServer | None = None
        self.replicas: dict[str, Replica] = {}
        self.past_replicas: list[Replica] = []
        self.operators: list[Operator] = []
        self.tiles = Tiles(("t0", "t1"))
        self.routers: dict[str, Router] = {}
        self.slots_answered = 0
        engine_check.watch(self.violations, kernel)
        if knobs.ledger:
            self.ledger = LedgerServer(kernel, self.network, self.violations, knobs)
        for number in range(knobs.coordinators):
            self.start_replica(f"c{number}")
        for name in self.names:
            self.start(name)
        for number in range(knobs.routers):
            self.start_router(f"router{number}", 1)
        self.clients = [Client(self, number) for number in range(knobs.clients)]
        self.fate = Fate(self)
        self.passed_over = False
        """A fold passed over messages that the stream's limits had taken."""
        self.at_rest = False
        self.inspected = False
        self.process = Process(kernel, "warden")
        kernel.spawn(self.process, "warden", self._wait_for_rest)

    def start(self, name: str) -> None:
        """A process of that name begins."""
        life = sum(node.name == name for node in self.past) + 1
        node = Node(
            name,
            self.kernel,
            self.network,
            self.planes,
            self.knobs,
            self.violations,
            life=life,
        )
        self.nodes[name] = node
        self.past.append(node)

    def start_replica(self, name: str) -> None:
        """A coordinator's process begins."""
        assert self.ledger is not None
        life = sum(one.name == name for one in self.past_replicas) + 1
        replica = Replica(name, self.kernel, self.ledger, self.knobs, life, self.tiles.status)
        self.replicas[name] = replica
        self.past_replicas.append(replica)

    def start_router(self, name: str, life: int) -> None:
        """A router's process begins."""
        self.routers[name] = Router(self, name, life)

    async def connect(self, settings: NodeSettings) -> Connection:
        """In place of ``connect_jetstream``."""
        assert self.ledger is not None
        connection = Connection(self.ledger)
        await connection.call(lambda log: log.bounds("KVF"))
        return connection

    def inspect(self, checks: Callable[[World], None]) -> None:
        """Run the last checks on a thread, for some of them take locks or wait."""

        def run() -> None:
            checks(self)
            self.inspected = True

        self.kernel.spawn(self.process, "inspection", run)

    def counts(self) -> dict[str, int]:
        """What happened, by the kind of event."""
        found = Counter(type(fact.event).__name__ for fact in self.facts)
        found["SlotAnswer"] = self.slots_answered
        found["Request"] = sum(client.asked for client in self.clients)
        return dict(sorted(found.items()))

    def _wait_for_rest(self) -> None:
        kernel = self.kernel
        by_s = self.knobs.busy_s + DRAIN_S_MAX
        while kernel.now_s < by_s:
            kernel.sleep(0.5)
            busy = [*self.clients, *self.routers.values()]
            if not self.fate.done or not all(one.done for one in busy):
                continue
            for node in self.nodes.values():
                node.poke()
            kernel.sleep(0.1)
            if not any(still_open(node) for node in self.nodes.values()) and level(self):
                break
        self.at_rest = True

    def handed(self, outbox: object, event: Event, *, kept: bool) -> None:
        """Some outbox was given a fact, and had room for it or not."""
        if not kept:
            outcome_needs_room(self, event)
        for node in self.past:
            if node.side is not None and node.side.outbox is outbox:
                self.facts.append(Fact(node.name, node.life, event))
                self.kernel.note("fact", node.name, _short(event))
                return


def _short(event: Event) -> str:
    """An event for the trace."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    shown = [f"{k}={v}" for k, v in fields.items() if v and not isinstance(v, bytes | dict)]
    return f"{type(event).__name__} {' '.join(shown)}"
