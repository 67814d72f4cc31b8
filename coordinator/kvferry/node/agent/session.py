"""What runs while a node is joined: two lanes, heartbeats, and an ear for the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kvferry.core.messages import control_subject
from kvferry.errors import LedgerError
from kvferry.ledger.credentials import without_secrets
from kvferry.ledger.subjects import coord_subject
from kvferry.node.agent.connect import Ledger
from kvferry.node.agent.heartbeat import Gauges, HeartbeatLoop
from kvferry.node.agent.holdings import HoldingsDesk, Truth
from kvferry.node.agent.inbox import Inbox
from kvferry.node.agent.lanes import Record
from kvferry.node.agent.lanes_blocks import BlocksLane
from kvferry.node.agent.lanes_facts import FactsLane, Offers
from kvferry.node.agent.settings import Identity, NodeSettings
from kvferry.node.agent.status import AgentStatus
from kvferry.node.agent.tasks import end_tasks
from kvferry.node.outbox.outbox import Outbox
from kvferry.ports.log import Handler

logger = logging.getLogger("kvferry.node")

RESTART_S = 1.0
"""Pause before a part that failed unexpectedly is run again."""


class Session:
    """One joined node over one ledger; made and used on the agent's thread.

    Attributes:
        superseded: set once another process owns our name.
    """

    def __init__(
        self,
        settings: NodeSettings,
        outbox: Outbox,
        ledger: Ledger,
        identity: Identity,
        status: AgentStatus,
        gauges: Gauges,
        *,
        inventory: Offers | None,
        truth: Truth | None,
    ) -> None:
        self.superseded = asyncio.Event()
        self._settings = settings
        self._outbox = outbox
        self._ledger = ledger
        self._space = identity.space
        self._status = status
        self._facts = FactsLane(
            settings,
            outbox,
            ledger,
            identity,
            inventory=inventory,
            on_trouble=self._attempted,
            on_record=self._recorded,
        )
        self._blocks = BlocksLane(settings, outbox, ledger, lambda: self._facts.published)
        self._heartbeat = HeartbeatLoop(
            settings.node,
            ledger,
            outbox,
            gauges,
            every_s=settings.heartbeat_s,
            published=lambda: self._facts.published,
            check=self._check,
        )
        desk = HoldingsDesk(settings.node, self._facts.standing, truth)
        self._inbox = Inbox(settings.node, self._facts, status, self.superseded.set, desk)
        self._abandoned = False
        self._lanes: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []

    def subjects(self) -> list[tuple[str, Handler]]:
        """What to listen to, and who handles it."""
        return [
            (control_subject(self._space, self._settings.node), self._inbox.control),
            (coord_subject(self._space), self._inbox.decided),
        ]

    def start(self) -> None:
        """Begin to publish."""
        self._lanes = [
            self._task("facts lane", self._facts.run),
            self._task("blocks lane", self._blocks.run),
        ]
        self._others = [self._task("heartbeat", self._heartbeat.run)]

    def wake(self) -> None:
        """Tell the lanes that something may wait."""
        if self._outbox.has_facts():
            self._facts.wake.set()
        if self._outbox.has_blocks():
            self._blocks.wake.set()

    async def finish(self, limit_s: float) -> None:
        """Publish what waits and ``node_closed``, within the limit."""
        self._blocks.close()
        self._facts.close()
        _, unfinished = await asyncio.wait(self._lanes, timeout=limit_s)
        if unfinished:
            logger.warning(
                "node %s stops while the ledger at %s does not take its last events",
                self._settings.node,
                without_secrets(self._settings.nats_url),
            )

    async def abandon(self) -> None:
        """Stop publishing at once. May be called again."""
        self._abandoned = True
        await end_tasks(self._lanes + self._others)

    # --- inner -------------------------------------------------------------------------------

    def _task(self, what: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(self._supervised(what, run), name=f"kvferry-{what}")

    async def _supervised(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        while not self._abandoned:
            try:
                await run()
                return
            except Exception:
                # A defect in one part must not silence the node; its state is kept and it goes on.
                logger.exception(
                    "the %s of node %s failed and is run again", what, self._settings.node
                )
            await asyncio.sleep(RESTART_S)

    def _recorded(self, record: Record) -> None:
        self._status.joined(record.space, record.epoch)

    def _attempted(self, error: LedgerError | None) -> None:
        if error is not None:
            self._status.alone(str(error))

    def _check(self) -> bool:
        """Whether the ledger is there; keeps the status true."""
        if not self._ledger.connected():
            url = without_secrets(self._settings.nats_url)
            self._status.alone(f"the connection to {url} is lost; start the ledger there again")
            return False
        record = self._facts.published
        if record is not None and not self._facts.troubled:
            self._status.joined(record.space, record.epoch)
        return True
