"""Stands in for ``socket`` and ``select`` in the shipped modules, over the simulated network."""

from __future__ import annotations

import socket as real_socket
from typing import Any

from tests.sim.kernel.kernel import Sleeper, running
from tests.sim.kernel.network import Link, Network


class SimSocket:
    """One end of a connection, or a listener."""

    def __init__(self, network: Network, process: Any) -> None:
        self.network, self.process = network, process
        self.link: Link | None = None
        self.address: tuple[str, int] | None = None
        self.backlog: list[Link] = []
        self.received = bytearray()
        self.eof = False
        self.error: OSError | None = None
        self.closed = False
        self._timeout: float | None = None
        self._waiting: list[Sleeper] = []

    # --- what shipped code calls ------------------------------------------------------------

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: object) -> None:
        if self.closed:
            raise OSError("closed")

    def getsockname(self) -> tuple[str, int]:
        assert self.address is not None
        return self.address

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self._wait(lambda: bool(self.backlog) or self.closed or self.eof):
            raise TimeoutError("timed out")
        if not self.backlog:
            raise OSError("the listener is shut down")
        link = self.backlog.pop(0)
        return link.server, ("peer", 0)

    def sendall(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        if self.closed or self.eof or self.link is None:
            raise BrokenPipeError("the connection is closed")
        self.link.send(self, bytes(data))

    def recv(self, most: int) -> bytes:
        if not self._wait(self.readable):
            raise TimeoutError("timed out")
        if self.error is not None:
            raise self.error
        part = bytes(self.received[:most])
        del self.received[:most]
        return part

    def shutdown(self, how: int) -> None:
        if self.closed:
            raise OSError("closed")
        if self.link is not None:
            self.link.end(self)
        self.eof = True
        self.wake()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.link is not None:
            self.link.end(self)
        if self.address is not None:
            self.network.unlisten(self)
        self.wake()

    # --- what the network calls -------------------------------------------------------------

    def readable(self) -> bool:
        """Whether a read would return at once: with bytes, with the end, or with an error."""
        return bool(self.received) or self.eof or self.closed or self.error is not None

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            running().wake(one)

    def wait_readable(self, timeout_s: float | None) -> bool:
        old, self._timeout = self._timeout, timeout_s
        try:
            return self._wait(lambda: self.readable() or bool(self.backlog))
        finally:
            self._timeout = old

    def _wait(self, true: Any) -> bool:
        kernel = running()
        by_s = None if self._timeout is None else kernel.now_s + self._timeout
        while not true():
            left_s = None if by_s is None else by_s - kernel.now_s
            if left_s is not None and left_s <= 0:
                return False
            me = kernel.current_thread()
            self._waiting.append(me)
            kernel.park(left_s, "socket")
            if me in self._waiting:
                self._waiting.remove(me)
        return True


class _Poll:
    """``select.poll`` of one socket."""

    def __init__(self) -> None:
        self._sock: SimSocket | None = None

    def register(self, sock: SimSocket, flags: int) -> None:
        self._sock = sock

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        assert self._sock is not None
        left_s = None if timeout_ms is None else timeout_ms / 1000
        return [(0, 1)] if self._sock.wait_readable(left_s) else []


class SimSelect:
    """The module ``select``, as far as it is used."""

    POLLIN = 1

    def poll(self) -> _Poll:
        return _Poll()


class SimSocketModule:
    """The module ``socket``, as far as it is used."""

    socket = SimSocket

    def create_server(self, address: tuple[str, int], **_: object) -> SimSocket:
        return network().listen(address)

    def create_connection(self, address: tuple[str, int], timeout: float) -> SimSocket:
        return network().connect(address, timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_socket, name)


def network() -> Network:
    """The network of the run under way."""
    found = running().network
    assert isinstance(found, Network)
    return found
