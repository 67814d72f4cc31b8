"""What the coordinator says to a node, and the leader's decisions that concern it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from kvferry.core.events import NodeLeft
from kvferry.core.messages import Control, encode
from kvferry.errors import CodecError, LedgerError
from kvferry.ledger.codec import decode
from kvferry.node.agent.holdings import HoldingsDesk
from kvferry.node.agent.lanes_facts import FactsLane
from kvferry.node.agent.status import DUPLICATE, AgentStatus
from kvferry.ports.log import Reply

logger = logging.getLogger("kvferry.node")


class Inbox:
    """Bus handlers of a joined node.

    Args:
        facts: told to resynchronise.
        status: told of policies and duplicates.
        on_duplicate: called when this process is to stop publishing.
        holdings: answers who asks what is held.
    """

    def __init__(
        self,
        node: str,
        facts: FactsLane,
        status: AgentStatus,
        on_duplicate: Callable[[], None],
        holdings: HoldingsDesk,
    ) -> None:
        self._node = node
        self._facts = facts
        self._status = status
        self._on_duplicate = on_duplicate
        self._holdings = holdings
        self._decode = msgspec.msgpack.Decoder(Control).decode

    async def control(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """A :class:`~kvferry.core.messages.Control` for our name."""
        try:
            control = self._decode(data)
        except msgspec.MsgspecError as error:
            logger.warning("a message on %s cannot be decoded: %s", subject, error)
            return
        record = self._facts.published
        if control.incarnation and (record is None or control.incarnation != record.incarnation):
            return
        if control.verb == "policy":
            self._status.policy(control.mode, control.version, control.retention)
        elif control.verb == "resync":
            if self._facts.resync(control.why or "the coordinator asks for it"):
                self._status.forget_policy()
        elif control.verb == "tell":
            await self._tell(control, reply)
        elif control.verb == "duplicate":
            self._status.duplicate(control.why)
            self._on_duplicate()
        else:
            logger.warning("the coordinator says %r, which is unknown here", control.verb)

    async def _tell(self, control: Control, reply: Reply | None) -> None:
        """A process that was told to stop publishing has nothing to say of what the name holds."""
        if reply is None or self._status.state == DUPLICATE:
            return
        page = self._holdings.page(control.after)
        if page is None:
            return
        try:
            await reply(encode(page))
        except LedgerError as error:
            logger.info("what node %s holds could not be told: %s", self._node, error)

    async def decided(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """A batch of our space's coord lane as it is being stored."""
        try:
            batch = decode(data)
        except CodecError as error:
            logger.debug("a decision on %s cannot be decoded: %s", subject, error)
            return
        record = self._facts.published
        for entry in batch.entries:
            event = entry.event
            if (
                isinstance(event, NodeLeft)
                and record is not None
                and event.node == self._node
                and (event.incarnation, event.epoch) == (record.incarnation, record.epoch)
            ):
                self._facts.ended(f"the leader gave us up: {event.why}")
