"""What crosses a data connection.

The target sends a request: magic, length, then a msgpack array. The source answers with one
chunk after the other until the request's range is done. A chunk is a head of 64 bytes, the
bytes of its blocks in stream order (:class:`kvferry_backends.layout.HostPool`), and 8 bytes for
each compared block. Every length follows from the request, so the target can receive a chunk in
one call straight into its blocks. A head that says no is the last thing on its connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from kvferry.errors import BackendError
from kvferry.ports.backend import Verify
from kvferry_backends.pairing import decode_description

PROTOCOL = 1
MAGIC = b"KVFT"
PREFIX = struct.Struct("!4sI")
REQUEST_OVERHEAD_BYTES = 64 * 1024
"""The most that a request may have besides 4 bytes for each block of the source's pool."""

CALL_BYTES = 32 * 1024 * 1024
"""The most that is sent or received in one go. After each return a busy engine thread keeps the
GIL for 5 ms, so fewer are better; between two of them a permission that ended is noticed."""
DIGESTED_CHUNK_BYTES = 4 * 1024 * 1024
"""A chunk of which each block is compared: small, so that the source takes digests of one while
the target does of the one before. Half of it costs more in calls than that gains on two cores."""
CHUNK_PIECES = 8192

HEAD_BYTES = 64
_HEAD_MAGIC = b"KVFH"
_HEAD = struct.Struct("!4s60s")
GO = _HEAD.pack(_HEAD_MAGIC, b"")


class PeerDescription(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a source says of itself; travels as the opaque bytes of ``Backend.describe``."""

    protocol: int
    address: str
    instance: str
    """This server's life: its address may later belong to another process."""
    blocks: int
    widths: tuple[int, ...]
    """Bytes of a block in each span."""
    digests: tuple[str, ...]
    tls: bool = False


class ReadPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Send the blocks at positions ``start`` to ``stop`` of the granted list."""

    protocol: int
    instance: str
    transfer: str
    grant: bytes
    blocks: bytes
    """The whole list that the grant signs, as little-endian 32-bit ids."""
    start: int
    stop: int
    chunk_blocks: int
    widths: tuple[int, ...]
    verify: Verify
    digest: str
    deadline_ms: int


_encoder = msgspec.msgpack.Encoder()
_part_decoder = msgspec.msgpack.Decoder(ReadPart)


def encode_part(part: ReadPart) -> bytes:
    """A request with its magic and length."""
    body = _encoder.encode(part)
    return PREFIX.pack(MAGIC, len(body)) + body


def decode_part(body: bytes | bytearray | memoryview) -> ReadPart:
    """A request's body.

    Raises:
        BackendError: it is not one.
    """
    try:
        return _part_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BackendError(f"not a request: {error}") from error


def encode_peer(peer: PeerDescription) -> bytes:
    return _encoder.encode(peer)


def decode_peer(blob: bytes) -> PeerDescription:
    """A peer's description.

    Raises:
        BackendError: it is none, or of another protocol.
    """
    return decode_description(blob, PeerDescription, PROTOCOL, "tcp")


def pack_blocks(blocks: tuple[int, ...]) -> bytes:
    """Block ids as little-endian 32-bit numbers, as grants sign them.

    Raises:
        BackendError: an id does not fit.
    """
    try:
        return struct.pack(f"<{len(blocks)}I", *blocks)
    except struct.error as error:
        raise BackendError(f"a source block is not a 32-bit id: {error}") from error


def unpack_blocks(packed: bytes) -> tuple[int, ...]:
    """The reverse of :func:`pack_blocks`.

    Raises:
        BackendError: the bytes are no whole number of ids.
    """
    if len(packed) % 4:
        raise BackendError(f"{len(packed)} bytes are not a whole number of block ids")
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def chunks(start: int, stop: int, chunk_blocks: int) -> Iterator[tuple[int, int]]:
    """The ranges into which both ends cut a request."""
    for at in range(start, stop, chunk_blocks):
        yield at, min(at + chunk_blocks, stop)


def chunk_blocks(verify: Verify, block_bytes: int, spans: int) -> int:
    """How many blocks a chunk should have."""
    size = DIGESTED_CHUNK_BYTES if verify is Verify.FULL else CALL_BYTES
    return max(1, min(size // block_bytes, CHUNK_PIECES // spans))


def chunks_per_call(part: ReadPart, block_bytes: int) -> int:
    """How many chunks may go through one call, where calls are dear."""
    return max(1, CALL_BYTES // (part.chunk_blocks * block_bytes))


def refusal(reason: str) -> bytes:
    """A head that says no; ``reason`` is cut at 60 bytes and must not be empty."""
    return _HEAD.pack(_HEAD_MAGIC, reason.encode()[:60])


def head_reason(head: bytes | bytearray) -> str:
    """Why the source says no; empty where it goes on.

    Raises:
        BackendError: this is not a head.
    """
    magic, reason = _HEAD.unpack(head)
    if magic != _HEAD_MAGIC:
        raise BackendError("the peer's answer does not begin with a head; is it kvferry?")
    return str(reason.rstrip(b"\0").decode(errors="replace"))
