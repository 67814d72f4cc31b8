"""The raw limit of a link: one plain copy of the same bytes, without blocks and backends."""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import logging
import mmap
import socket
import struct
import threading
import time
from typing import Any, Protocol

from kvferry.errors import BackendError
from kvferry_backends.bench.pools import cuda_torch
from kvferry_backends.tcp.options import split_address

_log = logging.getLogger("kvferry.bench")

TOKEN_BYTES = 32
CONNECT_S = 5.0
STREAM_S = 60.0
"""Longest wait of a raw stream for its other end."""
JOIN_S = 10.0
TAKERS_MAX = 4
_COUNT = struct.Struct("<Q")


class Raw(Protocol):
    """One way to move ``size`` bytes as plainly as can be."""

    def seconds(self) -> float:
        """Move them once; the time that it took."""
        ...

    def close(self) -> None: ...


class MemoryCopy:
    """``memmove`` between two buffers of this process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffers = [mmap.mmap(-1, size) for _ in range(2)]
        for buffer in self._buffers:
            buffer.write(b"\1" * size)  # Touched, so that no page is made while time is taken.
        self._places = [
            ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in self._buffers
        ]

    def seconds(self) -> float:
        target, source = self._places
        began = time.perf_counter()
        ctypes.memmove(target, source, self._size)
        return time.perf_counter() - began

    def close(self) -> None:
        self._buffers.clear()


class DeviceCopy:
    """A copy between the memories of two GPUs, as torch makes it."""

    def __init__(self, size: int, source: int, target: int) -> None:
        """
        Raises:
            BackendError: this process does not see both devices.
        """
        self._torch = torch = cuda_torch(max(source, target))
        self._source: Any = torch.ones(size, dtype=torch.uint8, device=f"cuda:{source}")
        self._target: Any = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{target}")
        self._devices = {source, target}

    def seconds(self) -> float:
        self._settle()
        began = time.perf_counter()
        self._target.copy_(self._source)
        self._settle()
        return time.perf_counter() - began

    def close(self) -> None:
        self._source = self._target = None

    def _settle(self) -> None:
        for device in self._devices:
            self._torch.cuda.synchronize(device)


class SocketStream:
    """One TCP stream of contiguous bytes from the other end's :class:`StreamServer`."""

    def __init__(self, size: int, address: str, token: bytes) -> None:
        """
        Raises:
            BackendError: the other end cannot be reached.
        """
        self._size = size
        self._into = memoryview(bytearray(size))
        try:
            self._sock = socket.create_connection(split_address(address), timeout=CONNECT_S)
            self._sock.settimeout(STREAM_S)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.sendall(token)
        except OSError as error:
            raise BackendError(f"no raw stream from {address}: {error}") from error

    def seconds(self) -> float:
        began = time.perf_counter()
        try:
            self._sock.sendall(_COUNT.pack(self._size))
            at = 0
            while at < self._size:
                count = self._sock.recv_into(self._into[at:])
                if not count:
                    raise BackendError("the other end closed the raw stream")
                at += count
        except OSError as error:
            raise BackendError(f"the raw stream broke: {error}") from error
        return time.perf_counter() - began

    def close(self) -> None:
        self._sock.close()


class StreamServer:
    """Sends as many contiguous bytes as are asked for, to whoever shows the token."""

    def __init__(self, host: str, size_max: int, token: bytes) -> None:
        self._size_max = size_max
        self._token = token
        self._data = memoryview(bytearray(size_max))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, 0), family=family)
        except OSError as error:
            raise BackendError(f"no raw stream can be offered at {host}: {error}") from error
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._takers: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, name="kvferry-raw", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Close every stream and join every thread."""
        with self._lock:
            self._closed = True
            takers = dict(self._takers)
        for sock in (self._listening, *takers):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in (self._acceptor, *takers.values()):
            thread.join(JOIN_S)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                if self._closed or len(self._takers) >= TAKERS_MAX:
                    sock.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=(sock,), name="kvferry-raw-stream", daemon=True
                )
                self._takers[sock] = thread
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(STREAM_S)
            if not hmac.compare_digest(_take(sock, TOKEN_BYTES), self._token):
                return
            while asked := _take(sock, _COUNT.size):
                sock.sendall(self._data[: min(_COUNT.unpack(asked)[0], self._size_max)])
        except OSError as error:
            _log.debug("a raw stream ended: %s", error)
        finally:
            with self._lock:
                self._takers.pop(sock, None)
            sock.close()


def _take(sock: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes; empty at the stream's end."""
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            return b""
        data += part
    return data
