"""The frames of a conversation, and how one crosses a stream."""

from __future__ import annotations

import struct
from typing import TypeAlias

import msgspec

from kvferry.errors import BackendError
from kvferry_backends.tcp.stream import Stream, StreamError

PROTOCOL = 1
MAGIC = b"KVFC"
PREFIX = struct.Struct("!4sI")
OPENING_OVERHEAD_BYTES = 64 * 1024
"""The most that an opening may have besides 4 bytes for each block of the source's pool."""
MESSAGE_MAX_BYTES = 1024 * 1024


class Opening(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="open"):
    """The first word of a conversation, from the target."""

    protocol: int
    backend: str
    instance: str
    """The source's life that the target means."""
    transfer: str
    grant: bytes
    blocks: bytes
    """The source's blocks as little-endian 32-bit ids, as the grant signs them."""
    deadline_ms: int
    """How long the target will wait for the conversation's end."""
    body: bytes


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="yes"):
    """The source has checked the grant and begins to serve."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag="say"):
    """Anything that the backend says, in either direction."""

    body: bytes


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """The last word of a conversation, from the source."""

    error: str = ""
    """Empty, ``refused`` or ``error``."""
    detail: str = ""


Frame: TypeAlias = Opening | Accepted | Message | End

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(
    Opening | Accepted | Message | End
)


def send_frame(stream: Stream, frame: Frame, deadline: float) -> None:
    """Send one frame.

    Raises:
        StreamError: the connection failed.
    """
    body = _encoder.encode(frame)
    stream.send([memoryview(PREFIX.pack(MAGIC, len(body)) + body)], deadline)


def receive_frame(stream: Stream, deadline: float, max_bytes: int) -> Frame:
    """Wait for one frame of at most ``max_bytes``.

    Raises:
        StreamError: the connection failed; ``moved`` is 0 where no byte of the frame had come.
        BackendError: what came is no frame.
    """
    prefix = bytearray(PREFIX.size)
    stream.receive([memoryview(prefix)], deadline)
    magic, length = PREFIX.unpack(prefix)
    if magic != MAGIC or not 0 < length <= max_bytes:
        raise BackendError(f"not a frame of at most {max_bytes} bytes: {bytes(prefix)!r}")
    body = bytearray(length)
    try:
        stream.receive([memoryview(body)], deadline)
    except StreamError as error:
        raise StreamError(error.error, str(error), error.moved + PREFIX.size) from error
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BackendError(f"not a frame: {error}") from error
