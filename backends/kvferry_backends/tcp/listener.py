"""The source's side: a listening socket and a bounded number of connections, one thread each."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time

from kvferry.errors import BackendError, BackendUnavailable
from kvferry_backends.tcp.serving import Refusal, Server
from kvferry_backends.tcp.stream import Stream, StreamError
from kvferry_backends.tcp.wire import (
    MAGIC,
    PREFIX,
    REQUEST_OVERHEAD_BYTES,
    ReadPart,
    decode_part,
)

CONNECTIONS_MAX = 64
FIRST_REQUEST_S = 5.0
"""A connection that has not yet shown a valid grant is dropped after this time."""
IDLE_S = 300.0
ACCEPT_RETRY_S = 0.2
JOIN_S = 10.0

_log = logging.getLogger("kvferry.backends.tcp")


class Listener:
    """Accepts targets and answers their requests until closed."""

    def __init__(self, server: Server, host: str, port: int) -> None:
        """Listen at once.

        Raises:
            BackendUnavailable: the address cannot be had.
        """
        self._server = server
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise BackendUnavailable(
                f"tcp backend cannot listen on {host}:{port} ({error}); "
                "set listen_host and listen_port to an address that is free"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._serving: dict[_Connection, threading.Thread] = {}
        self._acceptor = threading.Thread(
            target=self._accept, name="kvferry-tcp-accept", daemon=True
        )
        self._acceptor.start()

    def close(self) -> None:
        """Stop serving and join every thread. May be called twice."""
        self._stopping.set()
        with contextlib.suppress(OSError):  # closed before
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept; close alone would not
        self._acceptor.join(JOIN_S)
        self._socket.close()
        with self._lock:
            serving = dict(self._serving)
        for connection in serving:
            connection.stream.cut()
        give_up = time.monotonic() + JOIN_S
        for thread in (self._acceptor, *serving.values()):
            thread.join(max(0.0, give_up - time.monotonic()))
            if thread.is_alive():
                _log.error("thread %s did not end within %s s of close", thread.name, JOIN_S)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                accepted, address = self._socket.accept()
            except OSError as error:
                if not self._stopping.is_set():
                    _log.warning("accept failed (%s); raise the limit on open files?", error)
                    self._stopping.wait(ACCEPT_RETRY_S)
                continue
            self._admit(accepted, f"{address[0]}:{address[1]}")

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        if not self._make_room():
            _log.warning("%s turned away: all %s connections are busy", peer, CONNECTIONS_MAX)
            accepted.close()
            return
        try:
            connection = _Connection(self._server, Stream(accepted), peer)
        except OSError as error:
            _log.info("%s left before it was served: %s", peer, error)
            accepted.close()
            return
        thread = threading.Thread(
            target=self._serve, args=(connection,), name=f"kvferry-tcp-serve-{peer}", daemon=True
        )
        with self._lock:
            if self._stopping.is_set():
                connection.stream.close()
                return
            self._serving[connection] = thread
            thread.start()

    def _make_room(self) -> bool:
        """Whether one more connection may be served, if need be after dropping an idle one."""
        with self._lock:
            if len(self._serving) < CONNECTIONS_MAX:
                return True
            idle = [connection for connection in self._serving if connection.idle_since > 0]
            if idle:
                least = min(idle, key=lambda c: (c.trusted, c.idle_since))
                least.idle_since = 0.0
                least.stream.cut()
            return bool(idle)

    def _serve(self, connection: _Connection) -> None:
        try:
            connection.run()
        finally:
            connection.stream.close()
            with self._lock:
                self._serving.pop(connection, None)


class _Connection:
    """One target's connection: request after request until it leaves or errs."""

    def __init__(self, server: Server, stream: Stream, peer: str) -> None:
        self._server = server
        self.stream = stream
        self.peer = peer
        self.idle_since = time.monotonic()
        """When it began to wait for a request; 0 while one is served or it is being dropped."""
        self.trusted = False
        """Whether it has shown a valid grant."""
        self._request_max_bytes = REQUEST_OVERHEAD_BYTES + 4 * server.pool.blocks

    def run(self) -> None:
        transfer = "-"
        try:
            while True:
                patience_s = IDLE_S if self.trusted else FIRST_REQUEST_S
                part = self._next(time.monotonic() + patience_s)
                if part is None:
                    return
                transfer = part.transfer
                self.idle_since = 0.0
                self._server.answer(part, self.stream)
                self.trusted = True
                self.idle_since = time.monotonic()
        except Refusal as refused:
            _log.warning("transfer %s of %s refused: %s", transfer, self.peer, refused)
        except StreamError as error:
            _log.info("connection of %s ended (%s): %s", self.peer, error.error, error)
        except BackendError as error:
            _log.info("%s dropped: %s", self.peer, error)
        except Exception:
            _log.exception(
                "transfer %s of %s failed; its connection is closed", transfer, self.peer
            )

    def _next(self, deadline: float) -> ReadPart | None:
        """The next request, or None when the target closed the connection between two."""
        buffer = bytearray(REQUEST_OVERHEAD_BYTES)
        filled = 0
        needed = PREFIX.size
        while filled < needed:
            if needed > len(buffer):
                buffer.extend(bytes(needed - len(buffer)))
            with memoryview(buffer) as view:
                count = self.stream.receive_some(view[filled:], deadline)
            if count == 0:
                if filled:
                    raise BackendError(f"it left after {filled} bytes of a request")
                return None
            filled += count
            if needed == PREFIX.size and filled >= PREFIX.size:
                magic, length = PREFIX.unpack_from(buffer)
                if magic != MAGIC or length > self._request_max_bytes:
                    raise BackendError(f"not a request: {bytes(buffer[:8])!r}")
                needed += length
        if filled > needed:
            raise BackendError(f"{filled - needed} bytes follow its request unasked")
        return decode_part(memoryview(buffer)[PREFIX.size : needed])
