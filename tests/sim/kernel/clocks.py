"""Stands in for ``time`` and ``secrets`` in the shipped modules: virtual time, seeded chance."""

from __future__ import annotations

import time as real_time
from typing import Any

from tests.sim.kernel.kernel import EPOCH_S, running


class SimTime:
    """The clocks as the process sees them whose thread asks."""

    def monotonic(self) -> float:
        return running().now_s

    def perf_counter(self) -> float:
        return running().now_s

    def time(self) -> float:
        return EPOCH_S + running().now_s + _shift_s()

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        running().sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)


class SimSecrets:
    """Chance that repeats with the seed, different in each process."""

    def token_bytes(self, count: int = 32) -> bytes:
        return _rng().randbytes(count)

    def token_hex(self, count: int = 32) -> str:
        return _rng().randbytes(count).hex()


def _rng() -> Any:
    kernel = running()
    return kernel.rng if kernel.current is None else kernel.current.process.rng


def _shift_s() -> float:
    current = running().current
    return 0.0 if current is None else current.process.wall_shift_s
