"""Frames on a blocking socket, each send and receive bounded in time."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Any

import msgspec

from kvferry.errors import CodecError, PeerUnreachable
from kvferry.node.peers.wire import MAX_FRAME_BYTES, AnyFrame

FRAME_S = 5.0
"""Once a frame has begun, the rest of it must arrive in this time."""
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_MAX = 20, 5, 3
RECEIVE_BYTES = 1 << 18

_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyFrame)


def encode_frame(frame: AnyFrame) -> bytes:
    """The frame with its length before it.

    Raises:
        CodecError: it is longer than ``MAX_FRAME_BYTES``.
    """
    payload = _ENCODER.encode(frame)
    if len(payload) > MAX_FRAME_BYTES:
        raise CodecError(
            f"a {type(frame).__name__} frame of {len(payload)} bytes exceeds {MAX_FRAME_BYTES}"
        )
    return _LENGTH.pack(len(payload)) + payload


class FrameSocket:
    """One connected TCP socket as a stream of frames.

    One thread may send while another receives. :meth:`stop` may be called by any thread at any
    time and wakes both; :meth:`close` only when neither runs any more.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A host that vanished without a word is noticed in about half a minute.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_MAX)
        sock.settimeout(FRAME_S)
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, frame: AnyFrame, *, timeout_s: float = FRAME_S) -> None:
        """Send one frame whole.

        Raises:
            PeerUnreachable: the connection is gone or the peer takes nothing; a part of the
                frame may be out, so the socket is of no further use.
            CodecError: the frame is too long; nothing was sent.
        """
        data = encode_frame(frame)
        try:
            self._sock.settimeout(max(timeout_s, 0.001))
            self._sock.sendall(data)
        except OSError as error:
            raise PeerUnreachable(f"sending failed: {error}") from error

    def receive(
        self, *, timeout_s: float, frame_s: float = FRAME_S, limit: int = MAX_FRAME_BYTES
    ) -> AnyFrame | None:
        """The next frame, or None if none began within ``timeout_s``.

        A frame that began must be whole within another ``frame_s``.

        Raises:
            PeerUnreachable: the connection ended or a begun frame stalled.
            CodecError: it is longer than ``limit`` bytes, or not a frame.
        """
        if not self._readable(timeout_s):
            return None
        deadline_s = time.monotonic() + frame_s
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size, deadline_s))
        if length > limit:
            raise CodecError(f"a frame of {length} bytes exceeds the limit of {limit}")
        payload = self._take(length, deadline_s)
        try:
            frame: AnyFrame = _DECODER.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CodecError(f"not a frame: {error}") from error
        return frame

    def stop(self) -> None:
        """End both directions; whoever sends or receives gets an error at once."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            # Not connected any more: there is nobody to wake.
            return

    def close(self) -> None:
        """Give the socket back."""
        self.stop()
        self._sock.close()

    def _readable(self, timeout_s: float) -> bool:
        return bool(self._poll.poll(max(timeout_s, 0.0) * 1000))

    def _take(self, count: int, deadline_s: float) -> bytearray:
        data = bytearray()
        while len(data) < count:
            if not self._readable(deadline_s - time.monotonic()):
                raise PeerUnreachable("a frame began and did not end in time")
            try:
                part = self._sock.recv(min(count - len(data), RECEIVE_BYTES))
            except OSError as error:
                raise PeerUnreachable(f"receiving failed: {error}") from error
            if not part:
                raise PeerUnreachable("the peer closed the connection")
            data += part
        return data
