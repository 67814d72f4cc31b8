"""What engine and gate say to each other, over a Unix socket that keeps messages apart."""

from __future__ import annotations

import socket
import struct
from typing import TypeAlias

import msgspec

MESSAGE_BYTES = 4096
STATUS_BYTES = 512
_STATUS = struct.Struct(f"!12s{STATUS_BYTES - 12}s")


class Listening(msgspec.Struct, frozen=True, array_like=True, tag="listening"):
    """The gate's first word."""

    port: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The gate's first word where it cannot listen, and its last."""

    detail: str


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """A target was let in; its socket comes with this message."""

    peer: str


class TurnedAway(msgspec.Struct, frozen=True, array_like=True, tag="away"):
    """A target was not let in."""

    peer: str
    detail: str


class Dial(msgspec.Struct, frozen=True, array_like=True, tag="dial"):
    """From the engine: connect to a source. The gate's end of the socket comes with this; a
    status is the first thing that it writes there."""

    host: str
    port: int
    timeout_ms: int


FromGate: TypeAlias = Listening | Failed | Accepted | TurnedAway

_encoder = msgspec.msgpack.Encoder()
_from_gate: msgspec.msgpack.Decoder[FromGate] = msgspec.msgpack.Decoder(
    Listening | Failed | Accepted | TurnedAway
)
_to_gate = msgspec.msgpack.Decoder(Dial)


def send(
    control: socket.socket, message: FromGate | Dial, passed: socket.socket | None, flags: int = 0
) -> None:
    """Send ``message``, and ``passed`` with it.

    Raises:
        OSError: the other process is gone, or with ``MSG_DONTWAIT`` does not keep up.
    """
    descriptors = [] if passed is None else [passed.fileno()]
    socket.send_fds(control, [_encoder.encode(message)], descriptors, flags)


def receive_from_gate(control: socket.socket) -> tuple[FromGate, socket.socket | None]:
    """The next message of the gate, and the socket that came with it.

    Raises:
        EOFError: the gate is gone.
        OSError: the control socket broke.
    """
    body, passed = _receive(control)
    return _from_gate.decode(body), passed


def receive_from_engine(control: socket.socket) -> tuple[Dial, socket.socket]:
    """The next order of the engine.

    Raises:
        EOFError: the engine is gone.
        OSError: the control socket broke.
    """
    body, passed = _receive(control)
    assert passed is not None
    return _to_gate.decode(body), passed


def encode_status(word: str = "", detail: str = "") -> bytes:
    """What the gate writes first on a dialled socket: nothing but zeros where all is well, else
    a word of ``ReadOutcome.error`` and why."""
    return _STATUS.pack(word.encode(), detail.encode())


def decode_status(status: bytes | bytearray) -> tuple[str, str]:
    """The reverse of :func:`encode_status`."""
    word, detail = (part.rstrip(b"\0").decode(errors="replace") for part in _STATUS.unpack(status))
    return word, detail


def _receive(control: socket.socket) -> tuple[bytes, socket.socket | None]:
    body, descriptors, _, _ = socket.recv_fds(
        control, MESSAGE_BYTES, 1, flags=socket.MSG_CMSG_CLOEXEC
    )
    if not body:
        raise EOFError("the other process has closed its end")
    return body, socket.socket(fileno=descriptors[0]) if descriptors else None
