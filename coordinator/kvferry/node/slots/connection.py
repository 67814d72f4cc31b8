"""A connection of its own to the ledger's bus, tried until it stands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kvferry.errors import KVFerryError
from kvferry.ledger.credentials import without_secrets
from kvferry.node.agent.backoff import Backoff
from kvferry.node.agent.connect import Connect, Ledger
from kvferry.node.agent.settings import NodeSettings
from kvferry.ports.log import BusPort, Handler

log = logging.getLogger("kvferry.node")

CLOSE_WAIT_S = 5.0


class Connection:
    """Connects with backoff and listens; what it made reconnects by itself from then on.

    Args:
        settings: where the ledger is.
        connect: one attempt.
        handlers: subjects to listen to, and who handles what comes.
        use: told of the bus once all of them are listened to.
    """

    def __init__(
        self,
        settings: NodeSettings,
        connect: Connect,
        handlers: Mapping[str, Handler],
        use: Callable[[BusPort | None], None],
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._handlers = handlers
        self._use = use
        self._ledger: Ledger | None = None

    async def run(self) -> None:
        """Returns once it listens."""
        backoff = Backoff(self._settings)
        while not await self._tried():
            await backoff.wait()

    async def close(self) -> None:
        """End the connection, in bounded time."""
        self._use(None)
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await ledger.close()
        except (TimeoutError, KVFerryError) as error:
            log.warning("closing the connection for decode slots: %r", error)

    async def _tried(self) -> bool:
        try:
            if self._ledger is None:
                self._ledger = await self._connect(self._settings)
            for subject, handler in self._handlers.items():
                await self._ledger.subscribe(subject, handler)
        except KVFerryError as error:
            log.warning(
                "decode slots cannot be asked for at %s yet: %s",
                without_secrets(self._settings.nats_url),
                error,
            )
            await self.close()
            return False
        self._use(self._ledger)
        return True
