"""Storing messages: nothing counts until its acknowledgement came.

Messages go out in a window. When acknowledgements stop, or the server asks us to wait, or the
connection is replaced, all that is not acknowledged is sent again from the first such message
on (go-back-N); the message id makes the server store each once. A message that the server
refused while later ones were stored comes late in the stream: readers keep a reorder buffer of
one window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from nats.aio.msg import Msg

from kvferry.errors import LedgerError, LedgerRefused, LedgerUnavailable, WrongLastSequence
from kvferry.ledger.jsapi import WRONG_LAST_SEQUENCE, ApiError, api_error
from kvferry.ledger.life import Life
from kvferry.ledger.replies import Replies, is_no_responders

WINDOW_MESSAGES_MAX = 256
WINDOW_BYTES_MAX = 8 * 1024 * 1024
ACK_WAIT_S = 2.0
"""Without any acknowledgement for so long the server is asked for a sign of life."""
STALL_MAX_S = 15.0
"""Without any acknowledgement for so long an append fails."""
NO_STREAM_MAX_S = 3.0
"""The same where the server says that no stream takes the subject."""
SETTLE_POLL_S = 0.1
AGAIN_FIRST_S, AGAIN_MAX_S = 0.05, 1.0

EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"


class Outgoing(NamedTuple):
    """One message to store."""

    subject: str
    data: bytes
    headers: dict[str, str]


class _Ack(msgspec.Struct):
    seq: int = 0
    error: dict[str, Any] | None = None


_ACKS = msgspec.json.Decoder(_Ack)


class _Window:
    """What one append has sent, and what came back."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages = messages
        self.acked = bytearray(len(messages))
        self.base = 0
        self.next = 0
        self.bytes = 0
        self.seq = 0
        self.failure: LedgerError | None = None
        self.again = ""
        self.no_stream = False
        self.acks = 0
        self.under_way = 0
        """Sent on the present life and not answered."""
        self._wake: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        return self.base == len(self.messages)

    @property
    def has_room(self) -> bool:
        return (
            self.next < len(self.messages)
            and self.next - self.base < WINDOW_MESSAGES_MAX
            and (self.next == self.base or self.bytes < WINDOW_BYTES_MAX)
        )

    def rewind(self) -> None:
        self.next, self.bytes, self.again, self.no_stream = self.base, 0, "", False
        self.under_way = 0

    def take(self) -> tuple[int, Outgoing] | None:
        """The next message to send that is not acknowledged yet."""
        while self.next < len(self.messages):
            index = self.next
            self.next += 1
            self.bytes += len(self.messages[index].data)
            if not self.acked[index]:
                return index, self.messages[index]
        return None

    def nudge(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Until something came or ``timeout_s`` passed."""
        self._wake = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake
        except TimeoutError:
            return
        finally:
            self._wake = None

    def on_reply(self, which: str, message: Msg) -> None:
        index = int(which)
        self.under_way = max(0, self.under_way - 1)
        if is_no_responders(message):
            self.again, self.no_stream = "no stream takes it", True
        else:
            try:
                ack = _ACKS.decode(message.data)
            except msgspec.MsgspecError as error:
                self.again = f"an acknowledgement that is not JSON ({error})"
            else:
                self._judge(index, ack)
        self.nudge()

    def _judge(self, index: int, ack: _Ack) -> None:
        if ack.error is None:
            self._accept(index, ack.seq)
            return
        error = api_error(self.messages[index].subject, ack.error)
        if isinstance(error, ApiError):
            wrong = error.err_code in WRONG_LAST_SEQUENCE
            self.failure = WrongLastSequence(str(error)) if wrong else error
        else:
            self.again = str(error)

    def _accept(self, index: int, seq: int) -> None:
        if self.acked[index]:
            return
        self.acked[index] = 1
        self.acks += 1
        self.seq = max(self.seq, seq)
        while self.base < len(self.messages) and self.acked[self.base]:
            if self.base < self.next:
                self.bytes -= len(self.messages[self.base].data)
            self.base += 1
        self.next = max(self.next, self.base)

    def on_refusal(self, kind: str, subject: str) -> None:
        if kind != "publish" or self.done:
            return
        sent = self.messages[self.base : max(self.next, self.base + 1)]
        if any(message.subject.lower() == subject for message in sent):
            self.under_way = max(0, self.under_way - 1)
            self.failure = LedgerRefused(
                f"the ledger forbids this user to write {subject}: allow it in the user's "
                "publish permissions"
            )
            self.nudge()


class Appender:
    """Stores messages over one link."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._link = replies.link

    async def store(self, messages: Sequence[Outgoing]) -> int:
        """Store all in order; returns the highest stream sequence.

        Raises:
            WrongLastSequence: an expectation in the headers did not hold.
            LedgerRefused: the server will not store one of them.
            LedgerUnavailable: nothing was acknowledged for :data:`STALL_MAX_S`. Some may be
                stored; storing the same messages again is safe.
        """
        self._replies.check()
        if not messages:
            return 0
        window = _Window(messages)
        forget = self._link.refusals.watch(window.on_refusal)
        try:
            with self._replies.group(window.on_reply) as group:
                await self._drive(window, group.prefix)
        finally:
            forget()
        return window.seq

    async def _drive(self, window: _Window, prefix: str) -> None:
        clock = asyncio.get_running_loop().time
        progress_at, acks, again_s = clock(), 0, AGAIN_FIRST_S
        problem = "no acknowledgement"
        while not window.done:
            if window.failure is not None:
                await self._settle(window)
                raise window.failure
            if window.acks > acks:
                progress_at, acks, again_s = clock(), window.acks, AGAIN_FIRST_S
            limit_s = NO_STREAM_MAX_S if window.no_stream else STALL_MAX_S
            left_s = progress_at + limit_s - clock()
            if left_s <= 0:
                raise self._stalled(window, problem)
            life = await self._link.life(left_s)
            window.rewind()
            await self._pump(window, life, prefix)
            problem = window.again or life.why or problem
            if window.again:
                await asyncio.sleep(again_s)
                again_s = min(AGAIN_MAX_S, again_s * 2)

    async def _settle(self, window: _Window) -> None:
        """Let what is under way be answered: after a refusal nothing more is stored."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + ACK_WAIT_S
        while window.under_way and clock() < deadline and self._link.up:
            await window.wait(SETTLE_POLL_S)

    def _stalled(self, window: _Window, problem: str) -> LedgerUnavailable:
        subject = window.messages[window.base].subject
        if window.no_stream:
            return LedgerUnavailable(
                f"no stream of the ledger at {self._link.url} takes {subject}: the coordinator "
                "(`kvferry up` or `kvferry coordinator`) creates the streams, start it"
            )
        return LedgerUnavailable(
            f"the ledger at {self._link.url} stored {sum(window.acked)} of "
            f"{len(window.messages)} messages and then none of {subject} for "
            f"{STALL_MAX_S:g} s: {problem}"
        )

    async def _pump(self, window: _Window, life: Life, prefix: str) -> None:
        """Send and wait until all is acknowledged, or all unacknowledged must be sent again."""

        def lost(_: asyncio.Future[None]) -> None:
            window.nudge()

        life.lost.add_done_callback(lost)
        try:
            while not (window.done or window.failure or window.again or life.lost.done()):
                acks = window.acks
                if not await self._fill(window, life, prefix):
                    return
                if window.acks == acks and not (window.failure or window.again):
                    await window.wait(ACK_WAIT_S)
                    if window.acks == acks and not (window.failure or window.again):
                        await self._link.probe(life)
                        return
        finally:
            life.lost.remove_done_callback(lost)

    async def _fill(self, window: _Window, life: Life, prefix: str) -> bool:
        stop: Callable[[], bool] = life.lost.done
        while window.has_room and not (window.failure or window.again or stop()):
            taken = window.take()
            if taken is None:
                break
            index, message = taken
            window.under_way += 1
            try:
                await self._link.publish(
                    life,
                    message.subject,
                    message.data,
                    reply=f"{prefix}.{index}",
                    headers=message.headers,
                )
            except LedgerUnavailable:
                return False
        return True
