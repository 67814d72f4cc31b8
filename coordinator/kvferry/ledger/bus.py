"""Messages that are not kept, over a link."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg

from kvferry.errors import LedgerUnavailable
from kvferry.ledger.link import Link
from kvferry.ledger.mailbox import Mailbox
from kvferry.ledger.replies import NoResponders, Replies
from kvferry.ports.log import Handler, Reply


class Bus:
    """BusPort over a link. Subscriptions last across reconnects; what is sent between is lost."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._link: Link = replies.link
        self._mailboxes: set[Mailbox] = set()

    async def publish(self, subject: str, data: bytes) -> None:
        """See :meth:`kvferry.ports.log.BusPort.publish`; raises LedgerUnavailable when down."""
        await self._link.publish(await self._link.life(0.0), subject, data)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """See :meth:`kvferry.ports.log.BusPort.request`."""
        if not self._link.up:
            raise LedgerUnavailable(
                f"the ledger at {self._link.url} is not connected: {self._link.why_down}"
            )
        try:
            return await self._replies.request(subject, data, wait_s=timeout_s)
        except NoResponders:
            raise NoResponders(f"nobody listens on {subject}") from None

    async def subscribe(self, subject: str, handler: Handler) -> Callable[[], Awaitable[None]]:
        """See :meth:`kvferry.ports.log.BusPort.subscribe`."""
        mailbox = Mailbox(subject, handler)

        def arrived(message: Msg) -> None:
            answer = self._reply_to(message.reply) if message.reply else None
            mailbox.put(message.subject, bytes(message.data), answer)

        self._mailboxes.add(mailbox)
        listener = await self._link.listen(subject, arrived)
        if self._link.up:
            await self._link.probe(await self._link.life(0.0))

        async def stop() -> None:
            await self._link.unlisten(listener)
            self._mailboxes.discard(mailbox)
            await mailbox.close()

        return stop

    def _reply_to(self, inbox: str) -> Reply:
        async def reply(data: bytes) -> None:
            await self.publish(inbox, data)

        return reply

    async def close(self) -> None:
        """End every handler."""
        mailboxes, self._mailboxes = self._mailboxes, set()
        for mailbox in mailboxes:
            await mailbox.close()
