"""What is done to servers, coordinators and engines while conversations go on, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from tests.chaos.conftest import NAMES
from tests.chaos.fleet import Fleet
from tests.chaos.netns import Namespace
from tests.chaos.replicas import Replicas
from tests.chaos.servers import NatsCluster

FAR = NAMES[0]
"""The coordinator that lives in a namespace of its own, where there are namespaces."""


class World(NamedTuple):
    """Everything that a fault can hit."""

    cluster: NatsCluster
    replicas: Replicas
    fleet: Fleet
    far_engine: Namespace | None
    """Around d0."""
    far_replica: Namespace | None
    """Around :data:`FAR`."""

    def start_replica(self, name: str) -> None:
        nth = NAMES.index(name)
        within = self.far_replica.within if self.far_replica and name == FAR else ()
        self.replicas.start(name, url=self.cluster.url_from(nth), within=within)

    def decide(self, verb: str) -> None:
        """Have whichever replica leads store an operator's decision."""
        self.replicas.decide(NAMES, verb, node="p0")


class Fault(NamedTuple):
    """``strike`` returns what undoes it."""

    name: str
    strike: Callable[[World], Callable[[], None]]
    hold_s: float
    """For so long it lasts at least; conversations go on meanwhile."""
    blocks_turns: bool = False
    """Turns that are under way cannot end before it is undone."""


def kill_leader(world: World) -> Callable[[], None]:
    name = world.replicas.leader()
    world.replicas.processes[name].kill()
    return lambda: world.start_replica(name)


def freeze_leader(world: World) -> Callable[[], None]:
    process = world.replicas.processes[world.replicas.leader()]
    process.freeze()
    return process.thaw


def restart_all(world: World) -> Callable[[], None]:
    for name in NAMES:
        assert world.replicas.processes[name].terminate() == 0, world.replicas.said()
        world.start_replica(name)
        world.replicas.wait_serving(name)
    return lambda: None


def cut_replica(world: World) -> Callable[[], None]:
    assert world.far_replica is not None
    world.far_replica.cut()
    return world.far_replica.heal


def kill_server(world: World) -> Callable[[], None]:
    server = world.cluster.leader()
    assert server.process is not None
    server.process.kill()

    def again() -> None:
        world.cluster.start(server)
        server.wait_healthy()

    return again


def freeze_server(world: World) -> Callable[[], None]:
    server = world.cluster.leader()
    assert server.process is not None
    server.process.freeze()
    return server.process.thaw


def kill_engine(world: World) -> Callable[[], None]:
    world.fleet.engines["d0"].kill()

    def again() -> None:
        world.fleet.start("d0")
        world.fleet.wait_joined()

    return again


def freeze_engine(world: World) -> Callable[[], None]:
    engine = world.fleet.engines["d0"]
    engine.freeze()
    return engine.thaw


def cut_engine(world: World) -> Callable[[], None]:
    assert world.far_engine is not None
    world.far_engine.cut()
    return world.far_engine.heal


GENTLE = (
    Fault("the leading coordinator is killed", kill_leader, 2.0),
    Fault("the leading coordinator is frozen", freeze_leader, 3.0),
    Fault("all coordinators are restarted one by one", restart_all, 0.0),
    Fault("the server that leads the facts stream is killed", kill_server, 2.0),
    Fault("the server that leads the facts stream is frozen", freeze_server, 3.0),
    Fault("an engine is killed", kill_engine, 0.0),
    Fault("an engine is frozen beyond its silence", freeze_engine, 8.0, blocks_turns=True),
)
APART = (
    Fault("a coordinator is cut off", cut_replica, 3.0),
    Fault("a coordinator is cut off for long", cut_replica, 12.0),
    Fault("an engine is cut off", cut_engine, 3.0),
    Fault("an engine is cut off for long", cut_engine, 12.0),
)


def faults(world: World) -> tuple[Fault, ...]:
    """Those that can be done here."""
    return GENTLE + (APART if world.far_engine and world.far_replica else ())


def hold(fault: Fault, since_s: float) -> None:
    """Sleep what is left of the fault's time."""
    time.sleep(max(0.0, since_s + fault.hold_s - time.monotonic()))
