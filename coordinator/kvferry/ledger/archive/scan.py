"""Finds the chunks of an exported file, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import msgspec

from kvferry.errors import CodecError, ConfigError
from kvferry.ledger.archive.chunks import (
    END,
    HEAD,
    HEADER_BYTES,
    MAGIC,
    MESSAGES,
    OBJECT,
    Header,
    parse_header,
    unpack,
)
from kvferry.ledger.archive.contents import End, Head, decode_end, decode_head

SEARCH_BYTES = 1024 * 1024


class Place(msgspec.Struct, frozen=True):
    """Where a chunk lies."""

    offset: int
    header: Header


class Damage(msgspec.Struct, frozen=True):
    """Something that cannot be read: from which byte of the file, and what it means."""

    offset: int
    what: str


class Found(msgspec.Struct):
    """A file's table of contents."""

    head: Head
    messages: dict[str, list[Place]]
    objects: list[Place]
    damages: list[Damage]
    end: End | None


def scan(file: BinaryIO, path: Path) -> Found:
    """Read every header and check every payload's length; payloads are checked when read.

    Raises:
        ConfigError: not an exported file, or of a newer format; says what to do.
    """
    file.seek(0, 2)
    size = file.tell()
    places, damages = _places(file, size)
    if not places or places[0].header.kind != HEAD:
        raise ConfigError(
            f"{path} is not a file that `kvferry export` wrote, or its beginning is lost"
        )
    try:
        head = decode_head(payload(file, places[0]))
    except CodecError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    found = Found(head, {name: [] for name in head.streams}, [], damages, None)
    for place in places[1:]:
        _sort(file, place, found)
    if found.end is None:
        found.damages.append(
            Damage(size, "the file ends without its end mark: it was cut off there")
        )
    return found


def payload(file: BinaryIO, place: Place) -> bytes:
    """A chunk's payload.

    Raises:
        CodecError: damaged or cut off.
    """
    file.seek(place.offset + HEADER_BYTES)
    return unpack(place.header, file.read(place.header.packed_bytes))


def _sort(file: BinaryIO, place: Place, found: Found) -> None:
    header = place.header
    if header.kind == MESSAGES and header.stream < len(found.head.streams):
        found.messages[found.head.streams[header.stream]].append(place)
    elif header.kind == OBJECT:
        found.objects.append(place)
    elif header.kind == END:
        try:
            found.end = decode_end(payload(file, place))
        except CodecError as error:
            found.damages.append(Damage(place.offset, str(error)))
    else:
        found.damages.append(Damage(place.offset, f"a chunk of unknown kind {header.kind!r}"))


def _places(file: BinaryIO, size: int) -> tuple[list[Place], list[Damage]]:
    places: list[Place] = []
    damages: list[Damage] = []
    offset = 0
    while offset < size:
        file.seek(offset)
        try:
            header = parse_header(file.read(HEADER_BYTES))
        except CodecError as error:
            after = _next_magic(file, offset + 1)
            until = size if after is None else after
            damages.append(Damage(offset, f"{error}; {until - offset} bytes are passed over"))
            offset = until
            continue
        behind = offset + HEADER_BYTES + header.packed_bytes
        if behind > size:
            damages.append(Damage(offset, f"a chunk {_named(header)} is cut off"))
            break
        places.append(Place(offset, header))
        offset = behind
    return places, damages


def _named(header: Header) -> str:
    if header.kind == MESSAGES:
        return f"with messages {header.first} to {header.last}"
    return f"of kind {header.kind.decode(errors='replace')}"


def _next_magic(file: BinaryIO, offset: int) -> int | None:
    """Where the next chunk may begin."""
    while True:
        file.seek(offset)
        block = file.read(SEARCH_BYTES)
        at = block.find(MAGIC)
        if at >= 0:
            return offset + at
        if len(block) < SEARCH_BYTES:
            return None
        offset += len(block) - len(MAGIC) + 1
