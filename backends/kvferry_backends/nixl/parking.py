"""Staging rings of packed reads that were given up while NIXL may still write into them.

What is late there hurts nobody: it is not unpacked. So the ring waits for it, and the agent, which
others may be reading with, is spared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvferry_backends.nixl.agent import Agent, AgentError, Transfer
from kvferry_backends.nixl.rings import RingLoan

PARKED_MAX_S = 30.0
"""After so long a peer is not slow but gone, and the ring is worth more than the agent."""


@dataclass(frozen=True)
class Parked:
    """One ring, with the reads that may still write into it."""

    agent: Agent
    transfers: list[Transfer]
    loan: RingLoan
    until_s: float

    def late(self) -> bool:
        """Whether it is still to be waited for.

        Raises:
            AgentError: the peer is gone, or the wait has been too long.
        """
        if all(one.done or self.agent.ended(one) for one in self.transfers):
            return False
        if time.monotonic() >= self.until_s:
            raise AgentError("deadline", f"a read is {PARKED_MAX_S} s late")
        return True


class Parking:
    """All of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parked: list[Parked] = []

    def park(self, agent: Agent, transfers: list[Transfer], loan: RingLoan) -> None:
        """Keep this ring until nothing can write into it."""
        with self._lock:
            self._parked.append(Parked(agent, transfers, loan, time.monotonic() + PARKED_MAX_S))

    def sweep(self, retire: Callable[[Agent], bool]) -> None:
        """Give back what is free by now; ``retire`` ends an agent that has to go, if it can."""
        with self._lock:
            parked, self._parked = self._parked, []
        for one in parked:
            try:
                free = not one.late()
            except AgentError:
                free = retire(one.agent)
            if free:
                one.loan.give_back()
            else:
                with self._lock:
                    self._parked.append(one)

    def release(self, agent: Agent) -> None:
        """Give back what waits for an agent that has been ended."""
        with self._lock:
            free = [one for one in self._parked if one.agent is agent]
            self._parked = [one for one in self._parked if one.agent is not agent]
        for one in free:
            one.loan.give_back()
