"""A ledger in the memory of one process: the same promises without a server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable

from kvferry.errors import LedgerRefused, LedgerUnavailable, WrongLastSequence
from kvferry.ledger.mailbox import Mailbox
from kvferry.ledger.streams import StreamLimits
from kvferry.ledger.subjects import matches, stream_of
from kvferry.ports.log import (
    BLOCKS_STREAM,
    FACTS_STREAM,
    Handler,
    Reply,
    Stored,
    StreamBounds,
)

_log = logging.getLogger("kvferry.ledger")

DUPLICATE_IDS_MAX = 100_000
FOLLOW_CHECK_S = 1.0


class _Stream:
    """One total order; drops the oldest messages beyond ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.messages: deque[Stored] = deque()
        self.last = 0
        self._bytes = 0
        self._ids: OrderedDict[str, int] = OrderedDict()
        self._last_by_subject: dict[str, Stored] = {}

    @property
    def first(self) -> int:
        return self.messages[0].seq if self.messages else self.last + 1

    def known(self, message_id: str) -> int | None:
        return self._ids.get(message_id)

    def last_of(self, subject: str) -> Stored | None:
        stored = self._last_by_subject.get(subject)
        return stored if stored is not None and stored.seq >= self.first else None

    def add(self, subject: str, data: bytes, message_id: str) -> int:
        self.last += 1
        stored = Stored(self.last, subject, data, time.time_ns() // 1_000_000)
        self.messages.append(stored)
        self._last_by_subject[subject] = stored
        self._bytes += len(data)
        while self._bytes > self.max_bytes and len(self.messages) > 1:
            self._bytes -= len(self.messages.popleft().data)
        self._ids[message_id] = self.last
        if len(self._ids) > DUPLICATE_IDS_MAX:
            self._ids.popitem(last=False)
        return self.last

    def get(self, seq: int) -> Stored | None:
        """The first message at or after ``seq``."""
        if not self.messages or seq > self.last:
            return None
        return self.messages[max(0, seq - self.first)]


class MemoryLog:
    """LogPort, BusPort and ObjectPort for one event loop. Nothing survives the process."""

    def __init__(self, limits: StreamLimits | None = None) -> None:
        limits = limits or StreamLimits()
        self._streams = {
            FACTS_STREAM: _Stream(limits.facts_max_bytes),
            BLOCKS_STREAM: _Stream(limits.blocks_max_bytes),
        }
        self._objects: dict[str, bytes] = {}
        self._listeners: list[tuple[str, Mailbox]] = []
        self._grew = asyncio.Condition()
        self._closed = False

    # --- LogPort ----------------------------------------------------------------------------

    async def ensure_streams(self, **limits: int) -> None:
        """The streams always exist here; ``limits`` (of :class:`StreamLimits`) are set anew."""
        bounds = StreamLimits(**limits)
        self._streams[FACTS_STREAM].max_bytes = bounds.facts_max_bytes
        self._streams[BLOCKS_STREAM].max_bytes = bounds.blocks_max_bytes

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        """See :meth:`kvferry.ports.log.LogPort.append`."""
        stream = self._stream(stream_of(subject))
        known = stream.known(message_id)
        if known is not None:
            return known
        if expected_last is not None:
            last = stream.last_of(subject)
            actual = last.seq if last else 0
            if actual != expected_last:
                raise WrongLastSequence(
                    f"{subject}: the last sequence is {actual}, not {expected_last}"
                )
        seq = stream.add(subject, data, message_id)
        async with self._grew:
            self._grew.notify_all()
        return seq

    async def append_many(self, batch: list[tuple[str, bytes, str]]) -> None:
        """See :meth:`kvferry.ports.log.LogPort.append_many`."""
        for subject, data, message_id in batch:
            await self.append(subject, data, message_id=message_id)

    async def read(
        self, stream: str, *, start: int = 1, follow: bool = False, subject: str = ">"
    ) -> AsyncGenerator[Stored, None]:
        """See :meth:`kvferry.ports.log.LogPort.read`."""
        source = self._stream(stream)
        end, position = source.last, start
        while not self._closed and (follow or position <= end):
            stored = source.get(position)
            if stored is None:
                if not follow:
                    return
                await self._wait_for_growth(source, position)
                continue
            position = stored.seq + 1
            if (follow or stored.seq <= end) and matches(subject, stored.subject):
                yield stored

    async def _wait_for_growth(self, source: _Stream, position: int) -> None:
        async with self._grew:
            try:
                async with asyncio.timeout(FOLLOW_CHECK_S):
                    await self._grew.wait_for(lambda: self._closed or source.last >= position)
            except TimeoutError:
                return

    async def bounds(self, stream: str) -> StreamBounds:
        """See :meth:`kvferry.ports.log.LogPort.bounds`."""
        source = self._stream(stream)
        return StreamBounds(source.first, source.last)

    async def last_of_subject(self, subject: str) -> Stored | None:
        """See :meth:`kvferry.ports.log.LogPort.last_of_subject`."""
        return self._stream(stream_of(subject)).last_of(subject)

    async def close(self) -> None:
        """End every reader and every handler."""
        self._closed = True
        async with self._grew:
            self._grew.notify_all()
        listeners, self._listeners = self._listeners, []
        for _, mailbox in listeners:
            await mailbox.close()

    def _stream(self, name: str) -> _Stream:
        self._check_open()
        if name not in self._streams:
            raise LedgerRefused(f"the ledger has no stream {name}")
        return self._streams[name]

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerUnavailable("the ledger in memory is closed")

    # --- BusPort ----------------------------------------------------------------------------

    async def publish(self, subject: str, data: bytes) -> None:
        """See :meth:`kvferry.ports.log.BusPort.publish`."""
        self._check_open()
        self._deliver(subject, data, None)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """See :meth:`kvferry.ports.log.BusPort.request`."""
        self._check_open()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def reply(payload: bytes) -> None:
            if not answer.done():
                answer.set_result(payload)

        if not self._deliver(subject, data, reply):
            raise LedgerUnavailable(f"nobody listens on {subject}")
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise LedgerUnavailable(
                f"nobody answered on {subject} within {timeout_s:g} s"
            ) from None

    def _deliver(self, subject: str, data: bytes, reply: Reply | None) -> int:
        taken = [mailbox for pattern, mailbox in self._listeners if matches(pattern, subject)]
        for mailbox in taken:
            mailbox.put(subject, data, reply)
        return len(taken)

    async def subscribe(self, subject: str, handler: Handler) -> Callable[[], Awaitable[None]]:
        """See :meth:`kvferry.ports.log.BusPort.subscribe`."""
        self._check_open()
        entry = (subject, Mailbox(subject, handler))
        self._listeners.append(entry)

        async def stop() -> None:
            if entry in self._listeners:
                self._listeners.remove(entry)
            await entry[1].close()

        return stop

    def connected(self) -> bool:
        """True until closed."""
        return not self._closed

    # --- ObjectPort -------------------------------------------------------------------------

    async def put(self, name: str, data: bytes) -> None:
        """See :meth:`kvferry.ports.log.ObjectPort.put`."""
        self._check_open()
        self._objects[name] = bytes(data)

    async def get(self, name: str) -> bytes | None:
        """See :meth:`kvferry.ports.log.ObjectPort.get`."""
        self._check_open()
        return self._objects.get(name)

    async def delete(self, name: str) -> None:
        """See :meth:`kvferry.ports.log.ObjectPort.delete`."""
        self._check_open()
        self._objects.pop(name, None)
