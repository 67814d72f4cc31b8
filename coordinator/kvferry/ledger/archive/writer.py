"""Writes an exported file in one pass; only a whole one gets its name."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from kvferry.errors import ConfigError
from kvferry.ledger.archive.chunks import END, HEAD, MESSAGES, OBJECT, pack
from kvferry.ledger.archive.contents import End, Head, StoredObject, encode, encode_messages
from kvferry.ports.log import Stored

CHUNK_BYTES = 1024 * 1024
"""Of messages before compression, about; what a reader holds in memory, and what a damaged byte
costs."""
MESSAGE_OVERHEAD_BYTES = 64


class ArchiveWriter:
    """``with ArchiveWriter(path, head) as out``; a file that is left by an exception is removed."""

    def __init__(self, path: Path, head: Head) -> None:
        """
        Raises:
            ConfigError: the file cannot be made there; says why.
        """
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}")
        self._head = head
        self._numbers = {name: number for number, name in enumerate(head.streams)}
        self._messages: dict[str, int] = dict.fromkeys(head.streams, 0)
        self._waiting: list[Stored] = []
        self._waiting_of = ""
        self._waiting_bytes = 0
        self._bytes = 0
        try:
            self._file: BinaryIO = self._draft.open("xb")
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror}; name a file in a folder that exists and "
                "that you may write to"
            ) from error
        self._write(pack(HEAD, encode(head)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self._finish()
                return
            finally:
                self._file.close()
                self._draft.unlink(missing_ok=True)
        self._file.close()
        self._draft.unlink(missing_ok=True)

    @property
    def bytes_written(self) -> int:
        """The size of the file so far."""
        return self._bytes

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

    def _finish(self) -> None:
        self._flush()
        self._write(pack(END, encode(End(messages=self._messages))))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._draft.replace(self._path)

    def _write(self, data: bytes) -> None:
        try:
            self._bytes += self._file.write(data)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from error
