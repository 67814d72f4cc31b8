"""The source's side: a listening socket and a bounded number of connections, one thread each."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from kvferry_backends.tcp.door import Door, DoorClosed, SocketDoor
from kvferry_backends.tcp.stream import Stream

CONNECTIONS_MAX = 64
ACCEPT_RETRY_S = 0.2
JOIN_S = 10.0

_log = logging.getLogger("kvferry.backends")


class Connection(Protocol):
    """One accepted connection as its listener sees it."""

    stream: Stream
    idle_since: float
    """When it began to wait for a request; 0 while one is served or it is being dropped."""
    trusted: bool
    """Whether it has shown a valid grant."""

    def run(self) -> None:
        """Serve it until it ends. Never raises."""
        ...


class Listener:
    """Accepts targets and serves each on a thread of its own until closed."""

    def __init__(
        self,
        backend: str,
        host: str,
        port: int,
        connection: Callable[[Stream, str], Connection],
        *,
        connections_max: int = CONNECTIONS_MAX,
        last_word: bytes = b"",
        door: Door | None = None,
    ) -> None:
        """Listen at once, for the backend of this name.

        ``connection`` makes one of an accepted stream and the peer's ``ip:port``. Who comes when
        all ``connections_max`` are busy gets ``last_word`` and is turned away.
        A ``door`` is closed with the listener; without one it listens on ``host`` and ``port``.

        Raises:
            BackendUnavailable: the address cannot be had.
        """
        self._backend = backend
        self._connection = connection
        self._connections_max = connections_max
        self._last_word = last_word
        self._door = door if door is not None else SocketDoor(backend, host, port)
        self.port = self._door.port
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._serving: dict[Connection, threading.Thread] = {}
        self._acceptor = threading.Thread(
            target=self._accept, name=f"kvferry-{backend}-accept", daemon=True
        )
        self._acceptor.start()

    def close(self) -> None:
        """Stop serving and join every thread. May be called twice."""
        self._stopping.set()
        self._door.wake()
        self._acceptor.join(JOIN_S)
        with self._lock:
            serving = dict(self._serving)
        for connection in serving:
            connection.stream.cut()
        give_up = time.monotonic() + JOIN_S
        for thread in (self._acceptor, *serving.values()):
            thread.join(max(0.0, give_up - time.monotonic()))
            if thread.is_alive():
                _log.error("thread %s did not end within %s s of close", thread.name, JOIN_S)
        self._door.close()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                accepted, peer = self._door.accept()
            except DoorClosed as closed:
                if not self._stopping.is_set():
                    _log.error("%s: %s", self._backend, closed)
                return
            except OSError as error:
                if not self._stopping.is_set():
                    _log.warning("accept failed (%s); raise the limit on open files?", error)
                    self._stopping.wait(ACCEPT_RETRY_S)
                continue
            self._admit(accepted, peer)

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        if not self._make_room():
            _log.warning("%s turned away: all %s connections are busy", peer, self._connections_max)
            self._turn_away(accepted)
            return
        try:
            connection = self._connection(Stream(accepted), peer)
        except OSError as error:
            _log.info("%s left before it was served: %s", peer, error)
            accepted.close()
            return
        thread = threading.Thread(
            target=self._serve,
            args=(connection,),
            name=f"kvferry-{self._backend}-serve-{peer}",
            daemon=True,
        )
        with self._lock:
            if self._stopping.is_set():
                connection.stream.close()
                return
            self._serving[connection] = thread
            thread.start()

    def _turn_away(self, accepted: socket.socket) -> None:
        with accepted, contextlib.suppress(OSError):  # left before
            accepted.setblocking(False)
            accepted.send(self._last_word)

    def _make_room(self) -> bool:
        """Whether one more connection may be served, if need be after dropping an idle one."""
        with self._lock:
            if len(self._serving) < self._connections_max:
                return True
            idle = [connection for connection in self._serving if connection.idle_since > 0]
            if idle:
                least = min(idle, key=lambda c: (c.trusted, c.idle_since))
                least.idle_since = 0.0
                least.stream.cut()
            return bool(idle)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.run()
        finally:
            connection.stream.close()
            with self._lock:
                self._serving.pop(connection, None)
