"""One chunk of an exported file: a header, and a compressed payload with a checksum.

Header, big-endian: magic ``KVFC`` | kind (1 byte) | stream (1 byte) | first and last sequence
(8 bytes each) | bytes of the payload before and after compression (4 each) | CRC-32 of the
compressed payload | CRC-32 of all of the header before it.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from kvferry.errors import CodecError

MAGIC = b"KVFC"
HEAD, MESSAGES, OBJECT, END = b"H", b"M", b"O", b"E"
"""What the file is; messages of one stream; a stored object; the proper end."""
RAW_BYTES_MAX = 256 * 1024 * 1024
"""Of one payload. Checked before anything is unpacked."""
LEVEL = 6
_HEADER = struct.Struct(">4scBQQIIII")
HEADER_BYTES = _HEADER.size
_CRC_AT = HEADER_BYTES - 4


class Header(msgspec.Struct, frozen=True):
    """What a reader knows of a chunk without its payload."""

    kind: bytes
    stream: int
    """Position of the stream's name in the file's head; 0 for other kinds."""
    first: int
    last: int
    raw_bytes: int
    packed_bytes: int
    crc: int


def pack(kind: bytes, payload: bytes, *, stream: int = 0, first: int = 0, last: int = 0) -> bytes:
    """A whole chunk.

    Raises:
        CodecError: the payload is larger than :data:`RAW_BYTES_MAX`.
    """
    if len(payload) > RAW_BYTES_MAX:
        raise CodecError(f"a chunk of {len(payload)} bytes; the most is {RAW_BYTES_MAX}")
    packed = zlib.compress(payload, LEVEL)
    head = _HEADER.pack(
        MAGIC, kind, stream, first, last, len(payload), len(packed), zlib.crc32(packed), 0
    )[:_CRC_AT]
    return head + struct.pack(">I", zlib.crc32(head)) + packed


def parse_header(data: bytes) -> Header:
    """The header that ``data`` begins with.

    Raises:
        CodecError: it does not begin with one, or the header is damaged.
    """
    if len(data) < HEADER_BYTES:
        raise CodecError(f"{len(data)} bytes are too few for a chunk's header")
    magic, kind, stream, first, last, raw, packed, crc, own = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CodecError(f"no chunk begins with {data[:4]!r}")
    if zlib.crc32(data[:_CRC_AT]) != own:
        raise CodecError("the chunk's header is damaged")
    if raw > RAW_BYTES_MAX:
        raise CodecError(f"the chunk claims {raw} bytes; the most is {RAW_BYTES_MAX}")
    return Header(kind, stream, first, last, raw, packed, crc)


def unpack(header: Header, packed: bytes) -> bytes:
    """The payload of a chunk.

    Raises:
        CodecError: it is cut off or damaged.
    """
    if len(packed) != header.packed_bytes:
        raise CodecError(f"the chunk is cut off: {len(packed)} of {header.packed_bytes} bytes")
    if zlib.crc32(packed) != header.crc:
        raise CodecError("the chunk's checksum does not match")
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(packed, header.raw_bytes + 1)
    except zlib.error as error:
        raise CodecError(f"the chunk cannot be unpacked: {error}") from error
    if len(raw) != header.raw_bytes:
        raise CodecError(f"the chunk unpacks to other than the {header.raw_bytes} bytes it claims")
    return raw
