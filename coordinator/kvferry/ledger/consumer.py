"""One short-lived consumer of a stream: batches asked for one after the other."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple

from nats.aio.msg import Msg

from kvferry.errors import LedgerError, LedgerUnavailable
from kvferry.ledger.jsapi import PREFIX, JetStreamApi
from kvferry.ledger.life import Listener
from kvferry.ledger.replies import Replies, is_no_responders
from kvferry.ports.log import Stored

_log = logging.getLogger("kvferry.ledger")

BATCH_MESSAGES = 1024
AHEAD_MESSAGES = 512
"""The next batch is asked for while so many of the last wait to be read: the server works then, and
not only once the reader has run dry."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""A slow reader holds what is ahead and one batch, so twice that at the most."""
BATCH_EXPIRES_S = 30
HEARTBEAT_S = 1
SILENCE_MAX_S = 5.0
"""Without message or heartbeat for so long the consumer is given up."""
FORGET_AFTER_S = 20
"""The server drops the consumer when nobody asked for so long."""
_NS = 1_000_000_000


class ConsumerLost(LedgerUnavailable):
    """This consumer cannot go on; a new one can."""


class _Delivery(NamedTuple):
    """What the reply subject of a delivered message says."""

    stream_seq: int
    consumer_seq: int
    stored_ms: int
    pending: int


def _delivery(reply: str) -> _Delivery:
    """``$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<n>.<sseq>.<cseq>.<ns>.<pending>[...]``"""
    parts = reply.split(".")
    first = 2 if len(parts) == 9 else 4
    if len(parts) < first + 7 or parts[:2] != ["$JS", "ACK"]:
        raise ConsumerLost(f"a message without delivery numbers ({reply!r})")
    stream_seq, consumer_seq, stored_ns, pending = map(int, parts[first + 3 : first + 7])
    return _Delivery(stream_seq, consumer_seq, stored_ns // 1_000_000, pending)


class Consumer:
    """Use as an asynchronous context manager, on one life of the link."""

    def __init__(
        self, replies: Replies, api: JetStreamApi, stream: str, start: int, subject: str
    ) -> None:
        self._replies = replies
        self._api = api
        self._stream = stream
        self._start = max(1, start)
        self._subject = subject
        # An inbox of its own: a delivered message bears its stored subject, not our inbox.
        self._inbox = f"{replies.link.inbox_prefix}.{secrets.token_hex(8)}"
        self._waiting: deque[tuple[Stored, int]] = deque()
        self._arrived = asyncio.Event()
        self._failure: LedgerError | None = None
        self._delivered = 0
        self._batch = itertools.count(1)
        self._asked = ""
        self._left = 0
        self.pending = 0
        """Messages of the stream that this consumer has not handed out yet."""

    @property
    def drained(self) -> bool:
        """Nothing that arrived waits here."""
        return not self._waiting

    async def __aenter__(self) -> Consumer:
        link = self._replies.link
        self._life = await link.life(SILENCE_MAX_S)
        answer = await self._api.call(
            f"CONSUMER.CREATE.{self._stream}",
            {"stream_name": self._stream, "config": self._config()},
        )
        self._name = str(answer["name"])
        self.pending = int(answer.get("num_pending", 0))
        self._listener: Listener = await link.listen(
            f"{self._inbox}.*", self._on_message, self._on_overflow
        )
        self._life.lost.add_done_callback(self._on_lost)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._life.lost.remove_done_callback(self._on_lost)
        await self._replies.link.unlisten(self._listener)
        if not self._life.lost.done():
            try:
                await self._api.call(f"CONSUMER.DELETE.{self._stream}.{self._name}", wait_s=1.0)
            except LedgerError as failed:
                # It goes by itself after FORGET_AFTER_S.
                _log.debug("deleting consumer %s: %s", self._name, failed)

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._start,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": FORGET_AFTER_S * _NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if self._subject != ">":
            config["filter_subject"] = self._subject
        return config

    async def next(self) -> Stored | None:
        """The next message; None when there is none at the moment (a heartbeat came).

        Raises:
            ConsumerLost: a message is missing, the consumer or the connection is gone, silence.
        """
        if self._left <= 0 and self._failure is None and len(self._waiting) <= AHEAD_MESSAGES:
            await self._ask()
        if self._waiting:
            return self._pop()
        if self._failure is not None:
            raise self._failure
        self._arrived.clear()
        try:
            async with asyncio.timeout(SILENCE_MAX_S):
                await self._arrived.wait()
        except TimeoutError:
            raise ConsumerLost(f"neither message nor heartbeat for {SILENCE_MAX_S:g} s") from None
        return self._pop() if self._waiting else None

    def _pop(self) -> Stored:
        stored, self.pending = self._waiting.popleft()
        return stored

    async def refresh_pending(self) -> None:
        """Ask the server what is pending: expired messages never arrive."""
        answer = await self._api.call(f"CONSUMER.INFO.{self._stream}.{self._name}")
        if not self._waiting and int(answer["delivered"]["consumer_seq"]) == self._delivered:
            self.pending = int(answer.get("num_pending", 0))

    async def _ask(self) -> None:
        self._asked = str(next(self._batch))
        self._left = BATCH_MESSAGES
        request = (
            f'{{"batch":{BATCH_MESSAGES},"max_bytes":{BATCH_BYTES_MAX},'
            f'"expires":{BATCH_EXPIRES_S * _NS},"idle_heartbeat":{HEARTBEAT_S * _NS}}}'
        )
        await self._replies.link.publish(
            self._life,
            f"{PREFIX}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}",
            request.encode(),
            reply=f"{self._inbox}.{self._asked}",
        )

    def _on_lost(self, _: asyncio.Future[None]) -> None:
        self._fail(ConsumerLost(f"the connection was lost: {self._life.why}"))

    def _fail(self, failure: LedgerError) -> None:
        if self._failure is None:
            self._failure = failure
        self._arrived.set()

    def _fail_gap(self, came: int) -> None:
        self._fail(
            ConsumerLost(
                f"delivery {came} comes after {self._delivered}: messages were lost on the way"
            )
        )

    def _on_overflow(self) -> None:
        # What was dropped shows as a gap, in the next message or the next heartbeat; failing at
        # once would throw away what arrived before it.
        _log.info("a reader of %s could not keep up: some messages are read again", self._stream)

    def _on_message(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status is not None:
            self._on_status(message.subject.rpartition(".")[2], status, message)
            return
        try:
            delivery = _delivery(message.reply)
        except (ConsumerLost, ValueError) as error:
            self._fail(ConsumerLost(str(error)))
            return
        if delivery.consumer_seq != self._delivered + 1:
            self._fail_gap(delivery.consumer_seq)
            return
        self._delivered = delivery.consumer_seq
        self._left -= 1
        stored = Stored(
            delivery.stream_seq, message.subject, bytes(message.data), delivery.stored_ms
        )
        self._waiting.append((stored, delivery.pending))
        self._arrived.set()

    def _on_status(self, batch: str, status: str, message: Msg) -> None:
        if is_no_responders(message):
            self._fail(ConsumerLost("the consumer is gone"))
        elif status == "100":
            last = (message.headers or {}).get("Nats-Last-Consumer", "")
            if last.isdigit() and int(last) > self._delivered:
                self._fail_gap(int(last) + 1)
            self._arrived.set()
        elif batch == self._asked:
            text = (message.headers or {}).get("Description", "").lower()
            if status == "409" and ("deleted" in text or "shutdown" in text or "leader" in text):
                self._fail(ConsumerLost(text))
                return
            # The batch ended early: it expired, or reached its bytes.
            self._left = 0
            self._arrived.set()
