"""A simulated engine: its memory, its queue, and what it can give to others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kvferry.bench.policy.fleet import Job, Shared
from kvferry.bench.policy.keeper import CacheOnly, Keeper
from kvferry.replay.nodes.pool import BlockPool


class Held(NamedTuple):
    """How much of a chain an engine has, and whether some of it lies in host memory."""

    blocks: int
    from_host: bool


class Engine(ABC):
    """What prefill and decode engines have in common.

    Attributes:
        keeper: its retention policy.
        in_flight: requests that the router counts as being here.
        served: requests that ever came.
    """

    def __init__(self, name: str, role: str, shared: Shared, capacity: int) -> None:
        self.name = name
        self.role = role
        self.shared = shared
        self.pool = BlockPool(capacity, self._reused)
        self.keeper: Keeper = CacheOnly()
        self.in_flight = 0
        self.served = 0
        self._waiting: deque[Job] = deque()
        self._advancing = False
        self._again = False

    @property
    def now_s(self) -> float:
        return self.shared.clock.now_s

    def held(self, chain: Sequence[int]) -> Held:
        """The longest prefix of a chain whose KV is here."""
        host, from_host = self.keeper.host, False
        for at, block in enumerate(chain):
            if self.pool.ready(block):
                continue
            if host is None or not host.has(block):
                return Held(at, from_host)
            from_host = True
        return Held(len(chain), from_host)

    def submit(self, job: Job) -> None:
        """A request comes."""
        self._waiting.append(job)
        self.advance()

    def advance(self) -> None:
        """Admit what can be admitted, and begin what can begin."""
        if self._advancing:
            self._again = True  # Whoever is at it looks again.
            return
        self._advancing = True
        try:
            self._again = True
            while self._again:
                self._again = False
                self._work()
        finally:
            self._advancing = False

    @abstractmethod
    def _work(self) -> None:
        """Admit and begin what can be now."""

    def _has_room(self, job: Job, unnamed: int) -> bool:
        """Whether a request's blocks can be had now; leases give way, running requests do not."""
        needed = self.pool.missing(job.turn.chain, unnamed)
        self.keeper.room(self, needed)
        if needed > self.pool.free:
            self._is_short(job)
            return False
        if job.short_since_s is not None:
            self.shared.figures.stalled_s += self.now_s - job.short_since_s
            job.short_since_s = None
        return True

    def _is_short(self, job: Job) -> None:
        if job.short_since_s is None:
            job.short_since_s = self.now_s
            self.shared.figures.delayed += 1

    def _arrived(self, chain: Sequence[int]) -> None:
        self.shared.copies.came(self.pool.arrived(chain))

    def _reused(self, block: int) -> None:
        self.keeper.reused(self, block)
        self.shared.copies.went(block, "reused")
