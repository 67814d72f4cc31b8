"""One run from one seed, and what it found."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from tests.sim.checks.all import at_the_end
from tests.sim.checks.violations import Violation
from tests.sim.kernel import kernel as kernels
from tests.sim.kernel.install import Errors
from tests.sim.kernel.kernel import Kernel, Stuck
from tests.sim.kernel.threads import forget_threads
from tests.sim.world.knobs import Knobs
from tests.sim.world.node import probe_without_engine
from tests.sim.world.world import World

from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.vllm.joined import Joiner


class Outcome(msgspec.Struct, frozen=True):
    """What a run found, and what it was made of."""

    seed: int
    knobs: Knobs
    violations: tuple[Violation, ...]
    digest: str
    virtual_s: float
    counts: dict[str, int]
    """What happened in it, so that it shows whether it exercised anything."""
    trace: tuple[str, ...] = ()


def simulate(seed: int, knobs: Knobs, *, trace: bool = False) -> Outcome:
    """Run a seed. To be called inside :func:`tests.sim.kernel.install.simulated`."""
    kernel = Kernel(seed, preempt=knobs.preempt, keep_trace=trace)
    kernels.begin(kernel)
    errors, logger = Errors(), logging.getLogger("kvferry")
    level, spread = logger.level, logger.propagate
    logger.addHandler(errors)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    gc.disable()  # What a killed process left must not be finalised at a time of its own.
    world: World | None = None
    try:
        world = World(kernel, knobs)
        with _watched(world):
            try:
                kernel.run(lambda: world.at_rest)
                if world.at_rest:
                    world.inspect(at_the_end)
                    kernel.run(lambda: world.inspected)
            except Stuck as stuck:
                world.violations.add("endings", str(stuck))
        for name, error in kernel.crashes:
            world.violations.add("errors", f"{name} ended with {error!r}")
        for line in errors.found:
            world.violations.add("errors", line)
        return Outcome(
            seed=seed,
            knobs=knobs,
            violations=tuple(world.violations.found),
            digest=kernel.digest,
            virtual_s=kernel.now_s,
            counts=world.counts(),
            trace=tuple(kernel.lines or ()),
        )
    finally:
        kernel.close()
        kernels.end()
        forget_threads()
        logger.removeHandler(errors)
        logger.setLevel(level)
        logger.propagate = spread
        gc.enable()


@contextmanager
def _watched(world: World) -> Iterator[None]:
    """Note every fact that is handed over, whatever becomes of it."""
    shipped: Any = Outbox._leave_fact
    probe: Any = Joiner._probe

    def leave(outbox: Outbox, event: Any, cause: str, wall_ms: int) -> None:
        world.handed(outbox, event)
        shipped(outbox, event, cause, wall_ms)

    Outbox._leave_fact = leave  # type: ignore[method-assign]
    Joiner._probe = probe_without_engine  # type: ignore[method-assign]
    try:
        yield
    finally:
        Outbox._leave_fact = shipped  # type: ignore[method-assign]
        Joiner._probe = probe  # type: ignore[method-assign]
