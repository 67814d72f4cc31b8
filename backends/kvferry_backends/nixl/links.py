"""The agents that read: one for each peer, made when it is first read and ended with it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Any

from kvferry.errors import BackendError
from kvferry_backends.nixl.agent import Agent
from kvferry_backends.nixl.cost import FIRST_GUESS, Costs, Mode, learned
from kvferry_backends.nixl.library import Library
from kvferry_backends.nixl.options import NixlOptions
from kvferry_backends.nixl.pool import PeerPool, Pool
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


class Known:
    """What is kept of one peer. :meth:`Links.know` gives it."""

    def __init__(self, instance: str, guess: Costs) -> None:
        self.instance = instance
        self.making = threading.Lock()
        self.link: Link | None = None
        self.users = 0
        self.costs = guess

    def end(self) -> None:
        """Destroy its agent, if there is one."""
        with self.making:
            link, self.link = self.link, None
        if link is not None:
            try:
                link.agent.end()
            except BackendError as error:
                _log.critical("%s", error)


class Links:
    """All of them. Thread-safe; used by the threads of reads."""

    def __init__(self, library: Library, options: NixlOptions, instance: str, pool: Pool) -> None:
        self._library = library
        self._options = options
        self._instance = instance
        self._pool = pool
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Known] = OrderedDict()
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
            one.end()

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

    def drop(self, instance: str) -> None:
        """Forget a peer that has ended."""
        with self._lock:
            known = self._known.pop(instance, None)
        if known is not None:
            known.end()

    def close(self) -> None:
        """End every agent, and make no more."""
        with self._lock:
            self._closed = True
            left = list(self._known.values())
            self._known.clear()
        for one in left:
            one.end()

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
