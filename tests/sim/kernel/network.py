"""Connections and datagrams between processes, as late, cut and torn as a seed wants them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.kernel.kernel import Kernel, Process

if TYPE_CHECKING:
    from tests.sim.kernel.sockets import SimSocket


class Network:
    """Who reaches whom, and how long it takes.

    A connection is TCP's: bytes arrive in order, late where a partition holds them back, or the
    connection breaks and what was under way is lost.

    Attributes:
        dialled: every address that some process tried to connect to, with its name.
    """

    def __init__(self, kernel: Kernel, *, latency_s: float, spike_share: float) -> None:
        self.kernel = kernel
        self.rng = random.Random(f"{kernel.seed}/network")
        self.latency_s = latency_s
        self.spike_share = spike_share
        self.dialled: list[tuple[str, tuple[str, int]]] = []
        self.links: list[Link] = []
        self._listeners: dict[tuple[str, int], SimSocket] = {}
        self._parted: dict[tuple[str, str], float] = {}
        self._next_port = 20_000

    def part(self, one: str, other: str, seconds: float) -> None:
        """Nothing passes between two hosts for so long. A host is a process's name."""
        self.kernel.note("part", one, other, f"{seconds:.3f}")
        pair = _pair(one, other)
        self._parted[pair] = max(self._parted.get(pair, 0.0), self.kernel.now_s + seconds)

    def cut(self, one: str, other: str) -> None:
        """Break every connection between two hosts; what is under way is lost."""
        for link in [x for x in self.links if _pair(*x.hosts) == _pair(one, other)]:
            self.kernel.note("cut", *link.hosts)
            link.reset(ConnectionResetError("cut"))

    def parted_until(self, one: str, other: str) -> float:
        """When the two reach each other again; 0 if they do now."""
        until = self._parted.get(_pair(one, other), 0.0)
        return until if until > self.kernel.now_s else 0.0

    def delay_s(self) -> float:
        """How long one message takes now."""
        share = 0.5 + self.rng.random()
        if self.rng.random() < self.spike_share:
            share *= 50
        return self.latency_s * share

    def arrival_s(self, one: str, other: str) -> float:
        """When what is sent now arrives, partitions considered."""
        return max(self.kernel.now_s, self.parted_until(one, other)) + self.delay_s()

    # --- TCP --------------------------------------------------------------------------------

    def listen(self, address: tuple[str, int]) -> SimSocket:
        from tests.sim.kernel.sockets import SimSocket

        host, port = address
        if not port:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._listeners:
            raise OSError(98, "Address already in use")
        process = self.kernel.current_thread().process
        sock = SimSocket(self, process)
        sock.address = (host, port)
        self._listeners[host, port] = sock
        return sock

    def unlisten(self, sock: SimSocket) -> None:
        if sock.address is not None and self._listeners.get(sock.address) is sock:
            del self._listeners[sock.address]

    def connect(self, address: tuple[str, int], timeout_s: float) -> SimSocket:
        from tests.sim.kernel.sockets import SimSocket

        kernel = self.kernel
        process = kernel.current_thread().process
        self.dialled.append((process.name, address))
        by_s = kernel.now_s + timeout_s
        listener = self._listeners.get(address)
        until = self.parted_until(process.name, listener.process.name) if listener else 0.0
        took_s = max(0.0, until - kernel.now_s) + 2 * self.delay_s()
        if kernel.now_s + took_s >= by_s:
            kernel.sleep(timeout_s)
            raise TimeoutError("timed out")
        kernel.sleep(took_s)
        listener = self._listeners.get(address)
        if listener is None or not listener.process.alive:
            raise ConnectionRefusedError(111, "Connection refused")
        mine, theirs = SimSocket(self, process), SimSocket(self, listener.process)
        link = Link(self, mine, theirs)
        self.links.append(link)
        mine.link = theirs.link = link
        listener.backlog.append(link)
        listener.wake()
        return mine

    def vanish(self, process: Process) -> None:
        """The process was killed: its host answers with resets from now on."""
        for link in [x for x in self.links if process in (x.client.process, x.server.process)]:
            other = link.client if link.server.process is process else link.server
            when = self.arrival_s(*link.hosts)
            self.kernel.at(when, _resetting(link, other))
        for address in [a for a, s in self._listeners.items() if s.process is process]:
            del self._listeners[address]


class Link:
    """One connection."""

    def __init__(self, network: Network, client: SimSocket, server: SimSocket) -> None:
        self.network = network
        self.client, self.server = client, server
        self.hosts = (client.process.name, server.process.name)
        self.broken = False
        self._arrives = {client: 0.0, server: 0.0}

    def send(self, sender: SimSocket, data: bytes) -> None:
        self._later(sender, lambda receiver: receiver.received.extend(data))

    def end(self, sender: SimSocket) -> None:
        """One side says no more."""

        def over(receiver: SimSocket) -> None:
            receiver.eof = True
            self._forget()

        self._later(sender, over)

    def reset(self, error: OSError) -> None:
        """Both sides find it broken."""
        self.broken = True
        for side in (self.client, self.server):
            side.error = error
            side.wake()
        self._forget()

    def _later(self, sender: SimSocket, act: Callable[[SimSocket], None]) -> None:
        receiver = self.server if sender is self.client else self.client
        when = max(self.network.arrival_s(*self.hosts), self._arrives[receiver])
        self._arrives[receiver] = when

        def arrive() -> None:
            if not self.broken and not receiver.closed:
                act(receiver)
                receiver.wake()

        self.network.kernel.at(when, arrive)

    def _forget(self) -> None:
        if self in self.network.links:
            self.network.links.remove(self)


def _resetting(link: Link, side: SimSocket) -> Callable[[], None]:
    def act() -> None:
        side.error = ConnectionResetError("the peer is gone")
        link.broken = True
        side.wake()

    return act


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one <= other else (other, one)
