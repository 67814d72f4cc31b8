"""What stands in the chunks of an exported file."""

from __future__ import annotations

import msgspec

from kvferry.core.events import SCHEMAS
from kvferry.errors import CodecError
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, Stored

FORMAT = 1
STREAMS = (FACTS_STREAM, BLOCKS_STREAM)


class Range(msgspec.Struct, frozen=True):
    """First and last sequence that was exported of a stream; ``last`` is ``first - 1`` for none."""

    first: int
    last: int


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first chunk: what the file is."""

    format: int = FORMAT
    writer: str = ""
    """The version of kvferry that wrote it."""
    created_ms: int = 0
    """Unix milliseconds."""
    streams: tuple[str, ...] = STREAMS
    ranges: dict[str, Range] = {}
    schemas: dict[str, int] = {}
    """Event names and the versions that the writer knew."""
    stripped: bool = False
    """Names of requests and sessions and the hashes of blocks were replaced."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The last chunk: without it the file was cut off."""

    messages: dict[str, int] = {}
    """How many of each stream."""


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot, or the list of them."""

    name: str
    data: bytes


_ENCODER = msgspec.msgpack.Encoder()
_HEAD = msgspec.msgpack.Decoder(Head)
_END = msgspec.msgpack.Decoder(End)
_OBJECT = msgspec.msgpack.Decoder(StoredObject)
_MESSAGES = msgspec.msgpack.Decoder(list[tuple[int, str, bytes, int]])


def encode(content: Head | End | StoredObject) -> bytes:
    return _ENCODER.encode(content)


def encode_messages(messages: list[Stored]) -> bytes:
    return _ENCODER.encode([(one.seq, one.subject, one.data, one.stored_ms) for one in messages])


def decode_head(payload: bytes) -> Head:
    """The file's head.

    Raises:
        CodecError: malformed, or of a newer format, whose writer is named.
    """
    try:
        head = _HEAD.decode(payload)
    except msgspec.MsgspecError as error:
        raise CodecError(f"its head cannot be read: {error}") from error
    if head.format > FORMAT:
        raise CodecError(
            f"it has format {head.format}, written by kvferry {head.writer}; this kvferry reads "
            f"formats up to {FORMAT}: use kvferry {head.writer} or newer"
        )
    return head


def newer_events(head: Head) -> dict[str, int]:
    """Events of which the writer knew a version that this kvferry cannot read."""
    return {
        name: version
        for name, version in head.schemas.items()
        if name not in SCHEMAS or version > SCHEMAS[name][0]
    }


def decode_end(payload: bytes) -> End:
    """Raises: CodecError: malformed."""
    try:
        return _END.decode(payload)
    except msgspec.MsgspecError as error:
        raise CodecError(f"its end cannot be read: {error}") from error


def decode_object(payload: bytes) -> StoredObject:
    """Raises: CodecError: malformed."""
    try:
        return _OBJECT.decode(payload)
    except msgspec.MsgspecError as error:
        raise CodecError(f"an object cannot be read: {error}") from error


def decode_messages(payload: bytes) -> list[Stored]:
    """Raises: CodecError: malformed."""
    try:
        found = _MESSAGES.decode(payload)
    except msgspec.MsgspecError as error:
        raise CodecError(f"messages cannot be read: {error}") from error
    return [Stored(seq, subject, data, stored_ms) for seq, subject, data, stored_ms in found]
