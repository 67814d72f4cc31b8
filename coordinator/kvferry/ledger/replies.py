"""Answers to what we sent: one inbox for requests and for append acknowledgements."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from types import TracebackType

from nats.aio.msg import Msg

from kvferry.errors import LedgerRefused, LedgerUnavailable
from kvferry.ledger.link import Link

_log = logging.getLogger("kvferry.ledger")

OnReply = Callable[[str, Msg], None]
"""Called with what stood behind the group's number in the subject, and the message."""


class NoResponders(LedgerUnavailable):
    """Nobody listens on the subject."""


def is_no_responders(message: Msg) -> bool:
    """The server's own answer where nobody takes a message."""
    return bool(message.headers) and message.headers.get("Status") == "503"


class ReplyGroup:
    """A piece of the inbox. Use as a context manager; late answers after it are ignored."""

    def __init__(self, replies: Replies, number: str, on_reply: OnReply) -> None:
        self._replies, self._number, self._on_reply = replies, number, on_reply
        self.prefix = f"{replies.prefix}.{number}"

    def __enter__(self) -> ReplyGroup:
        self._replies.groups[self._number] = self._on_reply
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._replies.groups.pop(self._number, None)


class Replies:
    """Started once a link; the inbox is the same on every life of it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.prefix = f"{link.inbox_prefix}.{secrets.token_hex(8)}"
        self.groups: dict[str, OnReply] = {}
        self._numbers = itertools.count(1)
        self._refused_life = 0

    async def start(self) -> None:
        """Listen. Call before the link starts, so that a forbidden inbox fails the connect."""
        self.link.refusals.watch(self._refused)
        await self.link.listen(f"{self.prefix}.>", self._deliver)

    def check(self) -> None:
        """
        Raises:
            LedgerRefused: the server does not let us listen to our inbox.
        """
        if self._refused_life == self.link.lives:
            raise LedgerRefused(
                f"the ledger at {self.link.url} forbids us to listen on {self.prefix}.>: set "
                "inbox_prefix to the inbox that this user may subscribe to"
            )

    def _refused(self, kind: str, subject: str) -> None:
        if kind == "subscription" and subject.startswith(self.prefix.lower()):
            self._refused_life = self.link.lives

    def _deliver(self, message: Msg) -> None:
        number, _, rest = message.subject[len(self.prefix) + 1 :].partition(".")
        call = self.groups.get(number)
        if call is not None:
            call(rest, message)

    def group(self, on_reply: OnReply) -> ReplyGroup:
        """Where several answers may come; see :class:`ReplyGroup`."""
        return ReplyGroup(self, str(next(self._numbers)), on_reply)

    async def request(self, subject: str, data: bytes, *, wait_s: float) -> bytes:
        """Send one message and wait for one answer.

        Raises:
            NoResponders: nobody listens there.
            LedgerRefused: the server forbids the subject.
            LedgerUnavailable: no answer in time, or the connection broke meanwhile.
        """
        self.check()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        life = await self.link.life(wait_s)
        answer: asyncio.Future[Msg] = loop.create_future()

        def arrived(_: str, message: Msg) -> None:
            if not answer.done():
                answer.set_result(message)

        def refused(kind: str, forbidden: str) -> None:
            if kind == "publish" and forbidden == subject.lower() and not answer.done():
                answer.set_exception(
                    LedgerRefused(f"the ledger at {self.link.url} forbids us to ask {subject}")
                )

        forget = self.link.refusals.watch(refused)
        try:
            with self.group(arrived) as group:
                await self.link.publish(life, subject, data, reply=group.prefix)
                await asyncio.wait(
                    {answer, life.lost},
                    timeout=max(0.0, deadline - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            forget()
        if not answer.done():
            if life.lost.done():
                raise LedgerUnavailable(f"the connection broke while we asked {subject}")
            raise LedgerUnavailable(f"no answer on {subject} within {wait_s:g} s")
        message = answer.result()
        if is_no_responders(message):
            raise NoResponders(f"nobody answers on {subject}")
        return bytes(message.data)
