"""A load on disk, so that whoever is measured holds nothing but a small part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvferry.bench.index.reports import Report

PART_BYTES = 1024 * 1024
"""Of events that are read, and timed, at a time."""

_encode = msgspec.msgpack.Encoder().encode
_part = msgspec.msgpack.Decoder(list[Report])
LENGTH_BYTES = 4


def write_events(path: Path, reports: Iterable[Report]) -> None:
    """All events, in parts."""
    with path.open("wb") as file:
        part: list[Report] = []
        size = 0
        for report in reports:
            part.append(report)
            size += len(report.data)
            if size >= PART_BYTES:
                _write(file, part)
                part, size = [], 0
        _write(file, part)


def read_events(path: Path) -> Iterator[list[Report]]:
    """The parts that :func:`write_events` wrote."""
    with path.open("rb") as file:
        while length := file.read(LENGTH_BYTES):
            yield _part.decode(file.read(int.from_bytes(length, "big")))


def write_questions(path: Path, chains: Sequence[bytes]) -> None:
    """Chains as joined short hashes of all their blocks."""
    path.write_bytes(_encode(chains))


def read_questions(path: Path) -> list[bytes]:
    """What :func:`write_questions` wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[bytes])


def _write(file: BinaryIO, part: Sequence[Report]) -> None:
    body = _encode(part)
    file.write(len(body).to_bytes(LENGTH_BYTES, "big"))
    file.write(body)
