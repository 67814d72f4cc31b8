"""The agents that read: one for each peer, made when it is first read and ended with it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Any

from kvferry.errors import BackendError
from kvferry_backends.nixl.agent import Agent, Transfer
from kvferry_backends.nixl.cost import FIRST_GUESS, Costs, Mode, learned
from kvferry_backends.nixl.library import Library
from kvferry_backends.nixl.options import NixlOptions
from kvferry_backends.nixl.parking import Parking
from kvferry_backends.nixl.pool import PeerPool, Pool
from kvferry_backends.nixl.rings import RingLoan
from kvferry_backends.nixl.wire import PeerDescription

IDLE_MAX = 32
"""Peers whose agents are kept although nobody reads from them."""

_log = logging.getLogger("kvferry.backends.nixl")


class Link:
    """An agent that knows one peer, with prepared descriptors of both pools."""

    def __init__(self, agent: Agent, name: str, local: Any, remote: Any) -> None:
        self.agent = agent
        self.name = name
        """The peer's, as NIXL has it."""
        self.local = local
        self.remote = remote
        self.warm = False
        """Whether something was read: UCX connects in the first read, which teaches nothing."""


class Known:
    """What is kept of one peer. :meth:`Links.know` gives it."""

    def __init__(self, instance: str, guess: Costs) -> None:
        self.instance = instance
        self.making = threading.Lock()
        self.link: Link | None = None
        self.users = 0
        self.costs = guess


class Links:
    """All of them. Thread-safe; used by the threads of reads."""

    def __init__(self, library: Library, options: NixlOptions, instance: str, pool: Pool) -> None:
        self._library = library
        self._options = options
        self._instance = instance
        self._pool = pool
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._parking = Parking()
        self._made = 0
        self._closed = False

    def know(self, instance: str) -> Known:
        """A peer that is going to be read, without meeting it; to be given back."""
        with self._lock:
            known = self._known.get(instance)
            if known is None:
                known = Known(instance, FIRST_GUESS[self._pool.regions.kind])
                self._known[instance] = known
            known.users += 1
            return known

    def link(self, known: Known, peer: PeerDescription, theirs: PeerPool) -> Link:
        """The peer's link, made now if need be, for which the peer must be alive.

        Raises:
            BackendError: it cannot be made.
        """
        with known.making:
            if known.link is None:
                known.link = self._make(peer, theirs)
            return known.link

    def give(self, known: Known) -> None:
        """A read from this peer is over."""
        with self._lock:
            known.users -= 1
            over = []
            if self._known.get(known.instance) is known:
                self._known.move_to_end(known.instance)
                idle = [name for name, one in self._known.items() if not one.users]
                over = [self._known.pop(name) for name in idle[: max(0, len(idle) - IDLE_MAX)]]
            elif not known.users:
                over = [known]  # dropped meanwhile, and perhaps linked since
        for one in over:
            self._end(one)

    def learn(self, known: Known, mode: Mode, pieces: int, byte_count: int, took_s: float) -> None:
        """A read from this peer took so long."""
        with self._lock:
            known.costs = learned(known.costs, mode, pieces, byte_count, took_s)

    def retire(self, known: Known, link: Link) -> None:
        """Destroy this link's agent, which fences all that it reads; the next read makes another.

        Raises:
            BackendError: it lives on, and so may its reads.
        """
        with known.making:
            if known.link is link:
                known.link = None
        link.agent.end()
        self._parking.release(link.agent)

    def park(self, link: Link, transfers: list[Transfer], loan: RingLoan) -> None:
        """Take over a ring into which these reads, which nobody wants any more, may still write."""
        self._parking.park(link.agent, transfers, loan)

    def sweep(self) -> None:
        """Give back parked rings that are free by now."""
        self._parking.sweep(self._retire_agent)

    def _retire_agent(self, agent: Agent) -> bool:
        """End an agent, whoever reads with it; whether it is gone."""
        with self._lock:
            everybody = list(self._known.values())
        for known in everybody:
            with known.making:
                if known.link is not None and known.link.agent is agent:
                    known.link = None
        return _ended(agent)

    def _end(self, known: Known) -> None:
        """Destroy a peer's agent, if there is one."""
        with known.making:
            link, known.link = known.link, None
        if link is not None and _ended(link.agent):
            self._parking.release(link.agent)

    def drop(self, instance: str) -> None:
        """Forget a peer that has ended."""
        with self._lock:
            known = self._known.pop(instance, None)
        if known is not None:
            self._end(known)

    def close(self) -> None:
        """End every agent, and make no more."""
        with self._lock:
            self._closed = True
            left = list(self._known.values())
            self._known.clear()
        for one in left:
            self._end(one)

    def _make(self, peer: PeerDescription, theirs: PeerPool) -> Link:
        with self._lock:
            if self._closed:
                raise BackendError("this nixl backend is closed")
            self._made += 1
            name = f"{self._instance}.{self._made}"
        pool = self._pool
        agent = Agent(self._library, name, self._options)
        try:
            agent.register(pool.areas, pool.regions.kind, pool.regions.device)
            met = agent.meet(peer.metadata)
            local = agent.prepare("", pool.table, pool.regions.kind)
            return Link(agent, met, local, agent.prepare(met, theirs.table, peer.kind))
        except BaseException:
            agent.end()
            raise


def _ended(agent: Agent) -> bool:
    """End an agent; whether it is gone."""
    try:
        agent.end()
    except BackendError as error:
        _log.critical("%s", error)
        return False
    return True
