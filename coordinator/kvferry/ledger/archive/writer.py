"""Writes an exported file in one pass; only a whole one gets its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kvferry.files import draft
from kvferry.ledger.archive.chunks import END, HEAD, MESSAGES, OBJECT, pack
from kvferry.ledger.archive.contents import End, Head, StoredObject, encode, encode_messages
from kvferry.ports.log import Stored

CHUNK_BYTES = 1024 * 1024
"""Of messages before compression, about; what a reader holds in memory, and what a damaged byte
costs."""
MESSAGE_OVERHEAD_BYTES = 64


@contextmanager
def writing(path: Path, head: Head) -> Iterator[ArchiveWriter]:
    """An export to ``path``, which appears once it is whole.

    Raises:
        ConfigError: the file cannot be written there; says why.
    """
    with draft(path) as file:
        out = ArchiveWriter(file, head)
        yield out
        out.finish()


class ArchiveWriter:
    """Writes chunks to an open file; see :func:`writing`."""

    def __init__(self, file: BinaryIO, head: Head) -> None:
        self._file = file
        self._numbers = {name: number for number, name in enumerate(head.streams)}
        self._messages: dict[str, int] = dict.fromkeys(head.streams, 0)
        self._waiting: list[Stored] = []
        self._waiting_of = ""
        self._waiting_bytes = 0
        self.bytes_written = 0
        """The size of the file so far."""
        self._write(pack(HEAD, encode(head)))

    @property
    def messages(self) -> dict[str, int]:
        """How many of each stream so far."""
        return dict(self._messages)

    def add(self, stream: str, stored: Stored) -> None:
        """The next message of a stream. A stream is written as a whole before the next."""
        if self._waiting_of != stream:
            self._flush()
            self._waiting_of = stream
        self._waiting.append(stored)
        self._waiting_bytes += len(stored.data) + MESSAGE_OVERHEAD_BYTES
        if self._waiting_bytes >= CHUNK_BYTES:
            self._flush()

    def add_object(self, name: str, data: bytes) -> None:
        """A stored object."""
        self._flush()
        self._write(pack(OBJECT, encode(StoredObject(name=name, data=data))))

    def _flush(self) -> None:
        if not self._waiting:
            return
        messages, self._waiting, self._waiting_bytes = self._waiting, [], 0
        chunk = pack(
            MESSAGES,
            encode_messages(messages),
            stream=self._numbers[self._waiting_of],
            first=messages[0].seq,
            last=messages[-1].seq,
        )
        self._write(chunk)
        self._messages[self._waiting_of] += len(messages)

    def finish(self) -> None:
        """The end mark, without which a reader says that the file was cut off."""
        self._flush()
        self._write(pack(END, encode(End(messages=self._messages))))

    def _write(self, data: bytes) -> None:
        self.bytes_written += self._file.write(data)
