"""A blocking socket whose every call ends by a deadline, and which another thread can cut."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from kvferry.errors import BackendError
from kvferry_backends.tcp.vectors import IOV_MAX, Vectors

SOCKET_BUFFER_BYTES = 1024 * 1024
"""The kernel doubles it. Larger ones leave the processor's cache between the two copies: on
loopback 1 MiB was 1.5 times as fast as 4 MiB."""

_TCP_ESTABLISHED = 1
_MIN_TIMEOUT_S = 0.001

Move = Callable[[list[memoryview]], int]


class StreamError(BackendError):
    """A connection failed.

    Attributes:
        error: the word for it in a ``ReadOutcome``.
        moved: bytes that the failed call had already moved.
    """

    def __init__(self, error: str, detail: str, moved: int = 0) -> None:
        super().__init__(detail)
        self.error = error
        self.moved = moved


class Stream:
    """One connection. Used by one thread, but for :meth:`cut`.

    The socket is blocking, with kernel timeouts: a Python timeout would make it non-blocking,
    which defeats ``MSG_WAITALL`` and with it the few large calls that a busy engine needs.
    Deadlines are points of ``time.monotonic()``.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._cut = False
        self._end_lock = threading.Lock()
        sock.setblocking(True)
        self._is_tcp = sock.family != socket.AF_UNIX
        if self._is_tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)

    @classmethod
    def unconnected(cls, host: str) -> Stream:
        """A stream that still has to :meth:`connect`; ``host`` is an IP address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return cls(socket.socket(family, socket.SOCK_STREAM))

    def connect(self, host: str, port: int, deadline: float) -> None:
        """Connect.

        Raises:
            StreamError: ``unreachable``, ``deadline`` or ``aborted``.
        """
        self._allow(socket.SO_SNDTIMEO, deadline)
        try:
            self._sock.connect((host, port))
        except OSError as error:
            self._check_cut()
            raise StreamError("unreachable", f"cannot connect to {host}:{port}: {error}") from error

    def send(self, views: Sequence[memoryview], deadline: float) -> None:
        """Send all of ``views`` from where they lie.

        Raises:
            StreamError: ``unreachable``, ``deadline`` or ``aborted``.
        """
        self._move(views, deadline, socket.SO_SNDTIMEO, self._sock.sendmsg)

    def receive(self, views: Sequence[memoryview], deadline: float) -> None:
        """Fill all of ``views``.

        Raises:
            StreamError: ``unreachable``, ``deadline`` or ``aborted``.
        """

        def fill(batch: list[memoryview]) -> int:
            return self._sock.recvmsg_into(batch, 0, socket.MSG_WAITALL)[0]

        self._move(views, deadline, socket.SO_RCVTIMEO, fill)

    def send_vectors(self, vectors: Vectors, deadline: float) -> None:
        """Like :meth:`send`, for memory by address."""
        self._move_vectors(vectors.send, vectors, deadline, socket.SO_SNDTIMEO)

    def receive_vectors(self, vectors: Vectors, deadline: float) -> None:
        """Like :meth:`receive`, for memory by address."""
        self._move_vectors(vectors.receive, vectors, deadline, socket.SO_RCVTIMEO)

    def receive_some(self, view: memoryview, deadline: float) -> int:
        """Wait for at least a byte; returns how many came, 0 at the end of the stream.

        Raises:
            StreamError: ``unreachable``, ``deadline`` or ``aborted``.
        """
        while True:
            self._allow(socket.SO_RCVTIMEO, deadline)
            try:
                return self._sock.recv_into(view)
            except BlockingIOError:
                continue
            except OSError as error:
                self._check_cut()
                raise StreamError("unreachable", f"the connection broke: {error}") from error

    def readable(self) -> bool:
        """Whether :meth:`receive_some` would return or raise at once. Never blocks."""
        asked = select.poll()
        try:
            asked.register(self._sock, select.POLLIN)
            return bool(asked.poll(0))
        except (OSError, ValueError):  # closed
            return True

    def established(self) -> bool:
        """Whether the peer has neither closed nor reset the connection, as far as we know.

        Asks the kernel without giving up the GIL, as a peek at the data would. For idle
        connections: on one that TLS goes through, data that nobody asked for counts as an end.
        """
        if not self._is_tcp:
            return not self.readable()
        try:
            state = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            return False
        return state[0] == _TCP_ESTABLISHED

    def cut(self) -> None:
        """Make the call under way on another thread end, and every later one fail."""
        # The lock keeps a descriptor that was closed and given to somebody else from being hit.
        with self._end_lock, contextlib.suppress(OSError):
            self._cut = True
            self._sock.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Say that nothing more will be sent, so that what was sent still arrives."""
        with self._end_lock, contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Give the descriptor back. Only by the thread that uses the stream, or after it ended."""
        with self._end_lock:
            self._cut = True
            self._sock.close()

    def _move(self, views: Sequence[memoryview], deadline: float, option: int, move: Move) -> None:
        moved = 0
        for at in range(0, len(views), IOV_MAX):
            batch = list(views[at : at + IOV_MAX])
            while batch:
                count = self._call(partial(move, batch), deadline, option, moved)
                moved += count
                batch = _rest(batch, count)

    def _move_vectors(
        self, move: Callable[[int], int], vectors: Vectors, deadline: float, option: int
    ) -> None:
        moved = 0
        while vectors.left:
            call = partial(move, self._sock.fileno())
            moved += self._call(call, deadline, option, moved)

    def _call(self, move: Callable[[], int], deadline: float, option: int, moved: int) -> int:
        """How many bytes one call moved, which began after ``moved`` others."""
        while True:
            self._allow(option, deadline, moved)
            try:
                count = move()
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                self._check_cut()
                detail = f"the connection broke after {moved} bytes: {error}"
                raise StreamError("unreachable", detail, moved) from error
            if count == 0:
                self._check_cut()
                detail = f"the peer closed the connection after {moved} bytes"
                raise StreamError("unreachable", detail, moved)
            return count

    def _allow(self, option: int, deadline: float, moved: int = 0) -> None:
        """Let the next call wait until ``deadline``, or raise."""
        self._check_cut()
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise StreamError("deadline", f"the deadline passed after {moved} bytes", moved)
        # A timeout of zero would mean for ever.
        left_s = max(left_s, _MIN_TIMEOUT_S)
        whole_s = int(left_s)
        timeval = struct.pack("ll", whole_s, int((left_s - whole_s) * 1_000_000))
        self._sock.setsockopt(socket.SOL_SOCKET, option, timeval)

    def _check_cut(self) -> None:
        if self._cut:
            raise StreamError("aborted", "the connection was cut by this side")


def _rest(batch: list[memoryview], count: int) -> list[memoryview]:
    """What is left of ``batch`` after ``count`` bytes."""
    for index, view in enumerate(batch):
        if count < len(view):
            return [view[count:], *batch[index + 1 :]]
        count -= len(view)
    return []
