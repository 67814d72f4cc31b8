"""One run from one seed, and what it found."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
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

from kvferry.core.events import FACTS
from kvferry.node.agent import agent
from kvferry.node.outbox.outbox import Outbox
from kvferry.replay import step as folding
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


def simulate(
    seed: int,
    knobs: Knobs,
    *,
    trace: bool = False,
    look: Callable[[World], None] | None = None,
) -> Outcome:
    """Run a seed. To be called inside :func:`tests.sim.kernel.install.simulated`.

    ``look`` is called with what is left of the world at the end.
    """
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
        if look is not None:
            look(world)
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
    """Stand-ins for what the simulation lacks, and ears where shipped code does what is checked."""
    leave: Any = Outbox._leave_fact
    cross: Any = folding.cross_hole

    begin: Any = Outbox.__init__

    def begun(outbox: Outbox, **given: Any) -> None:
        begin(outbox, **{"facts_max": world.knobs.outbox_facts, **given})

    settle: Any = agent.NodeAgent.__init__

    def settled(made: agent.NodeAgent, settings: Any, outbox: Outbox, **given: Any) -> None:
        most = world.knobs.batch_events
        changed = msgspec.structs.replace(settings, batch_events_max=most)
        settle(made, changed, outbox, **given)

    def left(outbox: Outbox, event: Any, cause: str, wall_ms: int) -> None:
        dropped = outbox._dropped[FACTS]
        leave(outbox, event, cause, wall_ms)
        kept = not outbox._keeping or outbox._dropped[FACTS] == dropped
        world.handed(outbox, event, kept=kept)

    def crossed(state: Any, first: int, last: int) -> None:
        world.passed_over = True
        cross(state, first, last)

    patches: tuple[tuple[Any, str, Any], ...] = (
        (Outbox, "__init__", begun),
        (Outbox, "_leave_fact", left),
        (folding, "cross_hole", crossed),
        (agent.NodeAgent, "__init__", settled),
        (agent, "connect_jetstream", world.connect),
        (Joiner, "_probe", probe_without_engine),
    )
    shipped = [(owner, name, vars(owner)[name]) for owner, name, _ in patches]
    try:
        for owner, name, standin in patches:
            setattr(owner, name, standin)
        yield
    finally:
        for owner, name, value in shipped:
            setattr(owner, name, value)
