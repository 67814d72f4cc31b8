"""Writing into the memory of a process that is not ours and knows nothing of kvferry.

Nodes of a space read from each other (:mod:`kvferry.ports.backend`). A foreign decode server takes
part in nothing of that: it registers a buffer, tells how its library can be reached and where the
buffer lies, and expects the bytes to appear there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Area(msgspec.Struct, frozen=True):
    """Memory of ours that bytes are written from."""

    address: int
    length: int
    """Bytes."""
    kind: str = "host"
    """``host`` or ``cuda``."""
    device: int = 0


class Piece(msgspec.Struct, frozen=True):
    """Bytes to copy from our ``local`` address to the ``remote`` one on the target's ``device``."""

    local: int
    remote: int
    length: int
    device: int = 0


class Writing(Protocol):
    """Pieces on their way."""

    def done(self) -> bool:
        """Whether every byte is in place. Never blocks; to be asked until it says so, for asking
        is what moves the bytes on.

        Raises:
            BackendError: it failed; some bytes may still be on their way until
                :meth:`RemoteTarget.fence`.
        """
        ...


class RemoteTarget(Protocol):
    """One foreign process that we write to."""

    def write(self, pieces: Sequence[Piece]) -> Writing:
        """Begin to write. All pieces lie in the area given at the connection.

        Raises:
            BackendError: it failed, perhaps with a part of it under way.
        """
        ...

    def fence(self) -> None:
        """Stop everything under way: after the return nothing more is written to the target, and
        nothing more is read from our memory. The target cannot be used any more. May be called
        twice.

        Raises:
            BackendError: that cannot be made sure; the memory must not be used again.
        """
        ...


class RemoteWriter(Protocol):
    """A library that writes into foreign memory.

    Constructed as ``RemoteWriter(options: dict[str, object])``; raises
    :class:`kvferry.errors.BackendUnavailable` where it cannot work and
    :class:`kvferry.errors.ConfigError` for a wrong option.
    """

    name: str

    def connect(self, metadata: bytes, area: Area, probe: Sequence[Piece]) -> RemoteTarget:
        """Meet the process that described itself as ``metadata``.

        ``probe`` names memory of the target that will be written to, a piece for each of its
        devices: by them the kind of its memory is found, which it does not tell. Nothing is
        written.

        Raises:
            BackendError: it cannot be met, or does not offer that memory.
        """
        ...

    def close(self) -> None:
        """Fence every target that is left."""
        ...


class RemoteWriterFactory(Protocol):
    """What the entry-point group ``kvferry.writers`` holds."""

    def __call__(self, options: dict[str, object]) -> RemoteWriter: ...
