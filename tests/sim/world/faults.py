"""What goes wrong: one fault after the other, of the kinds and as often as the knobs say."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.kernel.kernel import Process

if TYPE_CHECKING:
    from tests.sim.world.world import World


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
            "reset_cache": self._reset_cache,
            "jump": self._jump,
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

    def _reset_cache(self) -> None:
        name = self._node()
        self._world.kernel.note("reset", name)
        self._world.nodes[name].reset_cache()

    def _jump(self) -> None:
        process = self._world.nodes[self._node()].process
        process.wall_shift_s += self._rng.choice((-30.0, -1.0, 1.0, 30.0, 4_000.0))
        self._world.kernel.note("jump", process.name, process.wall_shift_s)
