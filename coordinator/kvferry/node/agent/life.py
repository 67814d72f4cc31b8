"""The agent's life on its own thread: connect, join, publish, say good-bye."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from kvferry.core.messages import ANNOUNCE_SUBJECT, advice_subject, held_subject
from kvferry.errors import KVFerryError, LedgerError
from kvferry.ledger.credentials import without_secrets
from kvferry.node.agent.backoff import Backoff
from kvferry.node.agent.connect import Connect, Ledger
from kvferry.node.agent.heartbeat import Gauges
from kvferry.node.agent.holdings import Truth
from kvferry.node.agent.lanes_facts import Offers
from kvferry.node.agent.pace import Pace
from kvferry.node.agent.session import Session
from kvferry.node.agent.settings import Identity, NodeSettings
from kvferry.node.agent.status import AgentStatus
from kvferry.node.agent.tasks import end_tasks
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.plans.client import PlanClient
from kvferry.ports.log import Handler

logger = logging.getLogger("kvferry.node")

T = TypeVar("T")

STEPS_AT_ONCE = 64
"""Steps that are translated before other work of the agent's thread gets its turn."""

CLOSE_SHARE = 0.25
"""Share of the time to stop that is kept for closing the connection."""

UNASKED_CLOSE_S = 1.0
"""For closing the connection when the agent ends by itself."""


class Stopped(Exception):
    """The agent is to stop."""


class AgentLife:
    """Everything that happens on the agent's thread. Only ``__init__`` runs elsewhere."""

    def __init__(
        self,
        settings: NodeSettings,
        outbox: Outbox,
        plans: PlanClient,
        status: AgentStatus,
        gauges: Gauges,
        *,
        inventory: Offers | None,
        truth: Truth | None = None,
        connect: Connect,
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._plans = plans
        self._status = status
        self._gauges = gauges
        self._inventory = inventory
        self._truth = truth
        self._connect = connect
        self._url = without_secrets(settings.nats_url)
        self._identity: Identity | None = None
        self._known = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stop_by_s = 0.0
        self._session: Session | None = None

    def join(self, identity: Identity) -> None:
        """Who this node is; a later call begins another record after the facts left so far."""
        if self._identity is not None:
            self._outbox.rejoin(identity)
            return
        self._identity = identity
        self._known.set()

    def stop(self, by_s: float) -> None:
        """End :meth:`run` by this time of the monotonic clock."""
        self._stop_by_s = by_s
        self._stopping.set()

    async def run(self) -> None:
        """Until stopped."""
        pump = asyncio.create_task(self._pump(), name="kvferry-pump")
        try:
            await self._live()
        except Stopped:
            logger.debug("the agent stops before it joined")
        finally:
            await end_tasks([pump])
            await self._plans.close()

    # --- inner -------------------------------------------------------------------------------

    async def _live(self) -> None:
        if not self._settings.nats_url:
            self._outbox.discard()
            self._status.without()
            await self._stopping.wait()
            return
        ledger = await self._unless_stopped(self._connected())
        try:
            self._plans.use(ledger)
            await self._serve(ledger)
        finally:
            self._plans.use(None)
            await self._within(ledger.close(), self._left_s(), "closing the connection")

    async def _serve(self, ledger: Ledger) -> None:
        await self._unless_stopped(self._listen(ledger, ANNOUNCE_SUBJECT, self._plans.announced))
        await self._unless_stopped(self._known.wait())
        assert self._identity is not None
        session = Session(
            self._settings,
            self._outbox,
            ledger,
            self._identity,
            self._status,
            self._gauges,
            inventory=self._inventory,
            truth=self._truth,
        )
        self._session = session
        session.start()
        try:
            space = self._identity.space
            told: list[tuple[str, Handler]] = [
                (held_subject(space), self._plans.held.heard),
                (advice_subject(space), self._plans.advice.heard),
            ]
            for subject, handler in [*session.subjects(), *told]:
                await self._unless_stopped(self._listen(ledger, subject, handler))
            await self._unless_stopped(session.superseded.wait())
            await session.abandon()
            self._outbox.discard(self._status.why)
            self._plans.use(None)
            await self._stopping.wait()
        except Stopped:
            await session.finish(self._left_s() * (1 - CLOSE_SHARE))
        finally:
            await session.abandon()
            self._session = None

    async def _connected(self) -> Ledger:
        """Try until a server answers."""
        backoff = Backoff(self._settings)
        servers = self._settings.nats_url.count(",") + 1
        while not self._stopping.is_set():
            try:
                # The attempt bounds itself, for each server; this is for one that does not.
                async with asyncio.timeout(self._settings.connect_timeout_s * (servers + 1)):
                    ledger = await self._connect(self._settings)
                if not self._stopping.is_set():
                    return ledger
                # The client swallowed our cancellation and nobody waits for it any more.
                await self._within(ledger.close(), self._left_s(), "closing the connection")
                break
            except KVFerryError as error:
                self._status.alone(str(error))
            except TimeoutError:
                self._status.alone(
                    f"{self._url} does not answer; start the ledger there (kvferry up) or "
                    "correct nats_url"
                )
            except Exception as error:
                # Whatever the client does, the engine goes on and we try again.
                if self._status.state != "alone":
                    logger.exception("connecting to %s failed unexpectedly", self._url)
                self._status.alone(f"connecting to {self._url} failed: {error!r}")
            await backoff.wait()
        raise Stopped

    async def _listen(self, ledger: Ledger, subject: str, handler: Handler) -> None:
        backoff = Backoff(self._settings)
        while not self._stopping.is_set():
            try:
                await ledger.subscribe(subject, handler)
                return
            except LedgerError as error:
                self._status.alone(f"listening to {subject} failed: {error}")
            await backoff.wait()

    async def _pump(self) -> None:
        """Look into the outbox, translate what the engine left, wake the lanes."""
        pace = Pace(self._settings)
        while True:
            ran = self._outbox.untranslated > 0
            waiting = self._outbox.work(STEPS_AT_ONCE)
            if waiting and self._session is not None:
                self._session.wake()
            left = self._outbox.untranslated >= STEPS_AT_ONCE
            await asyncio.sleep(pace.after_look(ran=ran or waiting, left=left))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result.

        Raises:
            Stopped: the agent is to stop; the work is cancelled.
        """
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            await end_tasks([task, stop])

    async def _within(self, work: Awaitable[None], limit_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await work
        except TimeoutError:
            logger.warning(
                "%s to %s took longer than the time to stop; it is cut off", what, self._url
            )
        except LedgerError as error:
            logger.debug("%s to %s: %s", what, self._url, error)

    def _left_s(self) -> float:
        """Time left to stop in; a little where nobody asked us to stop."""
        if not self._stopping.is_set():
            return UNASKED_CLOSE_S
        return max(0.0, self._stop_by_s - time.monotonic())
