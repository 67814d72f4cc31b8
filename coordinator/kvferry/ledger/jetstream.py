"""The ledger in NATS JetStream: LogPort, BusPort and ObjectPort over one connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from kvferry.errors import LedgerRefused, WrongLastSequence
from kvferry.ledger.append import EXPECTED_LAST, Appender, Outgoing
from kvferry.ledger.bus import Bus
from kvferry.ledger.credentials import Credentials
from kvferry.ledger.jsapi import (
    MESSAGE_ID,
    MESSAGE_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    JetStreamApi,
    message_id_of,
    stored_of,
)
from kvferry.ledger.link import CONNECT_WAIT_S, Link
from kvferry.ledger.objects import Objects
from kvferry.ledger.reader import Reader, bounds
from kvferry.ledger.replies import Replies
from kvferry.ledger.streams import StreamLimits, create_missing, ensure
from kvferry.ledger.subjects import stream_of
from kvferry.ports.log import Handler, Stored, StreamBounds

_DEFAULTS = StreamLimits()


async def connect(
    url: str,
    *,
    name: str,
    credentials: Credentials | None = None,
    inbox_prefix: str = "_INBOX",
    timeout_s: float = CONNECT_WAIT_S,
) -> JetStreamLedger:
    """Connect to the NATS server at ``url`` (several separated by commas).

    It fails fast and leaves nothing behind, so that a caller may try again with its own backoff.
    Once it returned, the connection keeps itself up until :meth:`JetStreamLedger.close`.

    ``inbox_prefix`` is where answers to us go; a server that keeps users apart allows each its
    own, for example ``_INBOX.p0``.

    Raises:
        LedgerUnavailable: no server answered within ``timeout_s`` (each, where there are several).
        LedgerRefused: the server refuses the credentials or the inbox.
        ConfigError: the url or the credentials are wrong in themselves.
    """
    link = Link(url, name=name, credentials=credentials or Credentials(), inbox_prefix=inbox_prefix)
    replies = Replies(link)
    await replies.start()
    await link.start(timeout_s)
    try:
        replies.check()
    except LedgerRefused:
        await link.close()
        raise
    return JetStreamLedger(link, replies)


class JetStreamLedger:
    """Made by :func:`connect`; belongs to the event loop that made it."""

    def __init__(self, link: Link, replies: Replies) -> None:
        self._link = link
        self._replies = replies
        self._api = JetStreamApi(replies)
        self._appender = Appender(replies)
        self._bus = Bus(replies)
        self._objects = Objects(self._appender, replies, self._api, self._last_of)

    @property
    def url(self) -> str:
        """Without secrets, for texts."""
        return self._link.url

    def connected(self) -> bool:
        """See :meth:`kvferry.ports.log.BusPort.connected`."""
        return self._link.up and not self._link.closed

    def why_down(self) -> str:
        """Why it is not connected; empty while it is."""
        return "" if self.connected() else self._link.why_down

    async def ensure_streams(
        self,
        facts_max_bytes: int = _DEFAULTS.facts_max_bytes,
        blocks_max_bytes: int = _DEFAULTS.blocks_max_bytes,
        facts_max_age_s: int = _DEFAULTS.facts_max_age_s,
        blocks_max_age_s: int = _DEFAULTS.blocks_max_age_s,
        replicas: int = _DEFAULTS.replicas,
        objects_max_bytes: int = _DEFAULTS.objects_max_bytes,
    ) -> None:
        """Create the streams of the ledger, or set the bounds of those that exist.

        Objects that a writer which died left half written are dropped on the way.

        Raises:
            LedgerRefused: a stream of that name is not ours, or the server says no.
        """
        limits = StreamLimits(
            facts_max_bytes=facts_max_bytes,
            blocks_max_bytes=blocks_max_bytes,
            objects_max_bytes=objects_max_bytes,
            facts_max_age_s=facts_max_age_s,
            blocks_max_age_s=blocks_max_age_s,
            replicas=replicas,
        )
        await ensure(self._api, limits)
        await self._objects.sweep()

    async def create_missing(self, replicas: int = _DEFAULTS.replicas) -> None:
        """Create the streams that are missing; those that exist keep their operator's bounds.

        ``replicas`` counts where there is none of them yet. Objects that a writer which died left
        half written are dropped on the way.

        Raises:
            LedgerRefused: a stream of that name is not ours, or the server says no.
            LedgerUnavailable: the server cannot say now, as while a cluster elects.
        """
        await create_missing(self._api, replicas)
        await self._objects.sweep()

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        """See :meth:`kvferry.ports.log.LogPort.append`."""
        headers = {MESSAGE_ID: message_id}
        if expected_last is None:
            return await self._appender.store([Outgoing(subject, data, headers)])
        headers[EXPECTED_LAST] = str(expected_last)
        try:
            return await self._appender.store([Outgoing(subject, data, headers)])
        except WrongLastSequence:
            # The server looks at the expectation before the id, so a message that was sent
            # again after a lost acknowledgement is in its own way.
            successor = await self._get(
                stream_of(subject), {"seq": expected_last + 1, "next_by_subj": subject}
            )
            if successor is not None and message_id_of(successor) == message_id:
                return int(successor["seq"])
            raise

    async def append_many(self, batch: list[tuple[str, bytes, str]]) -> None:
        """See :meth:`kvferry.ports.log.LogPort.append_many`."""
        await self._appender.store(
            [
                Outgoing(subject, data, {MESSAGE_ID: message_id})
                for subject, data, message_id in batch
            ]
        )

    def read(
        self, stream: str, *, start: int = 1, follow: bool = False, subject: str = ">"
    ) -> AsyncGenerator[Stored, None]:
        """See :meth:`kvferry.ports.log.LogPort.read`.

        Messages that the stream no longer keeps are skipped: it begins at the first that is
        left. Close it with ``contextlib.aclosing`` when leaving early.
        """
        reader = Reader(self._replies, self._api, stream, start, subject)
        return reader.follow() if follow else reader.until_end()

    async def bounds(self, stream: str) -> StreamBounds:
        """See :meth:`kvferry.ports.log.LogPort.bounds`."""
        return await bounds(self._api, stream)

    async def last_of_subject(self, subject: str) -> Stored | None:
        """See :meth:`kvferry.ports.log.LogPort.last_of_subject`."""
        return await self._last_of(stream_of(subject), subject)

    async def _last_of(self, stream: str, subject: str) -> Stored | None:
        message = await self._get(stream, {"last_by_subj": subject})
        return None if message is None else stored_of(message)

    async def _get(self, stream: str, which: dict[str, Any]) -> dict[str, Any] | None:
        try:
            answer = await self._api.call(f"STREAM.MSG.GET.{stream}", which)
        except ApiError as error:
            if error.err_code == MESSAGE_NOT_FOUND:
                return None
            if error.err_code == STREAM_NOT_FOUND:
                raise LedgerRefused(
                    f"the ledger has no stream {stream}: the coordinator (`kvferry up` or "
                    "`kvferry coordinator`) creates it, start it"
                ) from error
            raise
        message: dict[str, Any] = answer["message"]
        return message

    async def publish(self, subject: str, data: bytes) -> None:
        """See :meth:`kvferry.ports.log.BusPort.publish`."""
        await self._bus.publish(subject, data)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """See :meth:`kvferry.ports.log.BusPort.request`."""
        return await self._bus.request(subject, data, timeout_s)

    async def subscribe(self, subject: str, handler: Handler) -> Callable[[], Awaitable[None]]:
        """See :meth:`kvferry.ports.log.BusPort.subscribe`."""
        return await self._bus.subscribe(subject, handler)

    async def put(self, name: str, data: bytes) -> None:
        """See :meth:`kvferry.ports.log.ObjectPort.put`."""
        await self._objects.put(name, data)

    async def get(self, name: str) -> bytes | None:
        """See :meth:`kvferry.ports.log.ObjectPort.get`."""
        return await self._objects.get(name)

    async def delete(self, name: str) -> None:
        """See :meth:`kvferry.ports.log.ObjectPort.delete`."""
        await self._objects.delete(name)

    async def close(self) -> None:
        """End handlers, readers and the connection, in bounded time."""
        await self._bus.close()
        await self._link.close()
