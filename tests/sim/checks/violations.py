"""What was found to be broken in a run, and by which checker."""

from __future__ import annotations

from typing import NamedTuple

from tests.sim.kernel.kernel import Kernel

KEPT_MAX = 50


class Violation(NamedTuple):
    """An invariant that did not hold."""

    check: str
    """The checker's name, as its file under ``tests/sim/checks``."""
    what: str
    at_s: float


class Violations:
    """All of one run."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.found: list[Violation] = []

    def add(self, check: str, what: str) -> None:
        """Note a broken invariant; the run goes on."""
        self._kernel.note("VIOLATION", check, what)
        if len(self.found) < KEPT_MAX:
            self.found.append(Violation(check, what, round(self._kernel.now_s, 6)))
