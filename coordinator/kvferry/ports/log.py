"""The ledger as its users see it: append, read in order, and a bus for request and reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import msgspec

FACTS_STREAM = "KVF"
BLOCKS_STREAM = "KVF_BLOCKS"


class Stored(msgspec.Struct, frozen=True):
    """One message as the log holds it."""

    seq: int
    subject: str
    data: bytes
    stored_ms: int


class StreamBounds(msgspec.Struct, frozen=True):
    """First and last sequence; ``first`` is ``last + 1`` for an empty stream."""

    first: int
    last: int


class LogPort(Protocol):
    """Two streams of messages, each with one total order.

    All methods raise :class:`kvferry.errors.LedgerUnavailable` when the log does not answer in
    time and :class:`kvferry.errors.LedgerRefused` when it refuses. None waits for ever.
    """

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        """Store one message and return its stream sequence.

        ``expected_last`` is the last sequence of this subject that the writer knows (0 for none).

        Raises:
            WrongLastSequence: somebody else wrote to the subject since.
        """
        ...

    async def append_many(self, batch: list[tuple[str, bytes, str]]) -> None:
        """Store (subject, data, message id) in order; resend until all are acknowledged.

        Safe to call again with the same messages: ids are deduplicated by the log.
        """
        ...

    def read(
        self, stream: str, *, start: int = 1, follow: bool = False, subject: str = ">"
    ) -> AsyncIterator[Stored]:
        """Messages from sequence ``start`` on, in order and without a hole.

        Without ``follow`` it ends at the stream's last sequence as of the call; with it, it goes
        on until closed, and survives reconnects by reading again from where it was.
        """
        ...

    async def bounds(self, stream: str) -> StreamBounds: ...

    async def last_of_subject(self, subject: str) -> Stored | None: ...

    async def close(self) -> None: ...


Reply = Callable[[bytes], Awaitable[None]]
Handler = Callable[[str, bytes, Reply | None], Awaitable[None]]
"""Called with subject, payload, and how to answer (None where nobody waits)."""


class BusPort(Protocol):
    """Messages that are not kept: heartbeats, plans, control."""

    async def publish(self, subject: str, data: bytes) -> None: ...

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """Ask and wait for one answer.

        Raises:
            LedgerUnavailable: nobody answered in time, or there is no connection.
        """
        ...

    async def subscribe(self, subject: str, handler: Handler) -> Callable[[], Awaitable[None]]:
        """Deliver messages to ``handler``, one at a time; returns how to stop."""
        ...

    def connected(self) -> bool: ...


class ObjectPort(Protocol):
    """Snapshots and other blobs by name."""

    async def put(self, name: str, data: bytes) -> None: ...

    async def get(self, name: str) -> bytes | None: ...

    async def delete(self, name: str) -> None: ...
