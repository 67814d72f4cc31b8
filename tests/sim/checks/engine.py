"""Invariant 4: the engine never waits for us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.sim.checks.violations import Violations
from tests.sim.kernel.kernel import Kernel, Sleeper

CHECK = "engine"

HOOK_S_MAX = 0.02
"""Of virtual time, in which only other threads that hold a short lock may run."""


@contextmanager
def hook(violations: Violations, kernel: Kernel, engine: str, name: str) -> Iterator[None]:
    """The engine thread is inside a hook of the connector."""
    thread, began_s = kernel.current_thread(), kernel.now_s
    thread.in_hook = name
    try:
        yield
    finally:
        thread.in_hook = ""
        if not kernel.over:
            took_s = kernel.now_s - max(began_s, thread.process.frozen_until_s)
            if took_s > HOOK_S_MAX:
                violations.add(CHECK, f"{engine} waited {took_s * 1000:.1f} ms in {name}")


def watch(violations: Violations, kernel: Kernel) -> None:
    """Whatever a hook waits for but a lock is a wait for somebody else."""

    def waits(thread: Sleeper, why: str) -> None:
        if why != "lock":
            violations.add(CHECK, f"{thread.name} waits for {why} in {thread.in_hook}")

    kernel.on_wait = waits
