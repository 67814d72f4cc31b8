"""What goes wrong: one fault after the other, of the kinds and as often as the knobs say."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.kernel.kernel import Process
from tests.sim.world.ledger import HOST
from tests.sim.world.operator import Operator

if TYPE_CHECKING:
    from tests.sim.world.tilert import Router
    from tests.sim.world.world import World


STOP_S_MAX = 40.0
"""A node that stops first answers what it was asked, and may wait for transfers and peers."""


class Fate:
    """Strikes while the run is busy, then lets everything heal."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"{world.kernel.seed}/fate")
        self._acts: dict[str, Callable[[], None]] = {
            "cut": self._cut,
            "part": self._part,
            "freeze": self._freeze,
            "kill": self._kill,
            "stop": self._stop,
            "twin": self._twin,
            "reset_cache": self._reset_cache,
            "jump": self._jump,
            "part_ledger": lambda: self._part_from_ledger(self._node()),
            "part_coordinator": lambda: self._part_from_ledger(self._replica()),
            "kill_coordinator": self._kill_coordinator,
            "stop_coordinator": self._stop_coordinator,
            "freeze_coordinator": self._freeze_coordinator,
            "tear_snapshot": self._tear_snapshot,
            "pause_space": self._pause_space,
            "kill_router": self._kill_router,
            "freeze_router": lambda: self._router().process.freeze(self._span() * 2),
            "part_router": lambda: self._part_from_ledger(self._router().name),
        }
        self.done = False
        self.process = Process(world.kernel, "fate")
        world.kernel.spawn(self.process, "fate", self._run)

    def _run(self) -> None:
        knobs, kernel = self._world.knobs, self._world.kernel
        kernel.sleep(0.3)
        while knobs.faults_per_s > 0:
            kernel.sleep(self._rng.expovariate(knobs.faults_per_s))
            if kernel.now_s > knobs.busy_s:
                break
            self._acts[self._rng.choice(knobs.fault_kinds)]()
        self.done = True

    def _two(self) -> tuple[str, str]:
        one, other = self._rng.sample(self._world.names, 2)
        return one, other

    def _node(self) -> str:
        return self._rng.choice(self._world.names)

    def _span(self) -> float:
        return self._rng.choice((0.05, 0.3, 1.2, 3.0)) * (0.5 + self._rng.random())

    def _cut(self) -> None:
        self._world.network.cut(*self._two())

    def _part(self) -> None:
        self._world.network.part(*self._two(), self._span())

    def _freeze(self) -> None:
        self._world.nodes[self._node()].process.freeze(self._span())

    def _kill(self) -> None:
        name = self._node()
        self._world.nodes[name].process.kill()
        self._world.kernel.sleep(self._span())
        self._world.start(name)

    def _stop(self) -> None:
        """A clean end, as of a rolling restart; what it was asked before is answered first."""
        name, kernel = self._node(), self._world.kernel
        node = self._world.nodes[name]
        kernel.note("stop", name)
        node.stop()
        by_s = kernel.now_s + STOP_S_MAX
        while node.process.alive and kernel.now_s < by_s:
            kernel.sleep(0.1)
        if node.process.alive:
            self._world.violations.add("endings", f"{name} does not stop in {STOP_S_MAX} s")
        self._world.start(name)

    def _twin(self) -> None:
        """Another process begins under a name that is in use; the older one goes on for a while."""
        name = self._node()
        older = self._world.nodes[name]
        self._world.kernel.note("twin", name)
        self._world.start(name)
        self._world.kernel.sleep(self._span())
        older.process.kill()

    def _reset_cache(self) -> None:
        name = self._node()
        self._world.kernel.note("reset", name)
        self._world.nodes[name].reset_cache()

    def _jump(self) -> None:
        process = self._world.nodes[self._node()].process
        process.wall_shift_s += self._rng.choice((-30.0, -1.0, 1.0, 30.0, 4_000.0))
        self._world.kernel.note("jump", process.name, process.wall_shift_s)

    # --- of routers ---------------------------------------------------------------------------

    def _router(self) -> Router:
        return self._rng.choice(list(self._world.routers.values()))

    def _kill_router(self) -> None:
        router = self._router()
        router.process.kill()
        self._world.kernel.sleep(self._span())
        self._world.start_router(router.name, router.life + 1)

    # --- of the ledger and of coordinators --------------------------------------------------

    def _replica(self) -> str:
        return self._rng.choice([*self._world.replicas, "c0"])

    def _part_from_ledger(self, name: str) -> None:
        self._world.network.part(name, HOST, self._span() * 2)

    def _kill_coordinator(self) -> None:
        if self._world.replicas:
            name = self._rng.choice(list(self._world.replicas))
            self._world.replicas[name].process.kill()
            self._world.kernel.sleep(self._span())
            self._world.start_replica(name)

    def _stop_coordinator(self) -> None:
        """A clean end, with a last checkpoint and a goodbye."""
        if self._world.replicas:
            name, kernel = self._rng.choice(list(self._world.replicas)), self._world.kernel
            kernel.note("stop", name)
            self._world.replicas[name].stop()
            kernel.sleep(self._span())
            self._world.replicas[name].process.kill()
            self._world.start_replica(name)

    def _freeze_coordinator(self) -> None:
        if self._world.replicas:
            name = self._rng.choice(list(self._world.replicas))
            self._world.replicas[name].process.freeze(self._span() * 2)

    def _tear_snapshot(self) -> None:
        ledger = self._world.ledger
        if ledger is not None:
            pick = self._rng
            ledger.serve(
                lambda log: ledger.tear(lambda names: pick.choice(names) if names else None),
                lambda result, failed: None,
            )

    def _pause_space(self) -> None:
        """An operator pauses everything, and resumes it a little later."""
        kernel = self._world.kernel
        Operator(self._world, "pause")
        kernel.sleep(self._span())
        Operator(self._world, "resume")
