"""The blocks lane: detail, published beside the facts and never before or against them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from kvferry.core.envelope import Entry
from kvferry.core.events import BLOCKS, AnyEvent
from kvferry.errors import LedgerError
from kvferry.node.agent.lanes import LaneWriter, Record, wait_for_more
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.outbox.outbox import Outbox
from kvferry.ports.log import LogPort

logger = logging.getLogger("kvferry.node")


class BlocksLane:
    """Publishes detail under the record that the facts lane has published.

    Attributes:
        wake: set it when something may wait in the outbox.
    """

    def __init__(
        self,
        settings: NodeSettings,
        outbox: Outbox,
        log: LogPort,
        published: Callable[[], Record | None],
    ) -> None:
        self.wake = asyncio.Event()
        self._settings = settings
        self._outbox = outbox
        self._published = published
        self._writer = LaneWriter(
            BLOCKS,
            settings,
            log,
            on_stored=lambda count: outbox.stored(BLOCKS, count),
            on_trouble=self._attempted,
        )
        self._closing = False
        self._troubled = False

    def close(self) -> None:
        """Publish what waits; :meth:`run` then returns."""
        self._closing = True
        self.wake.set()

    async def run(self) -> None:
        """Publish until closed. After an error it may be run again, and goes on."""
        while True:
            await self._writer.flush()
            record = self._published()
            if record is None or not self._outbox.has_blocks():
                if self._closing:
                    return
                await self._wait()
                continue
            if record != self._writer.record:
                self._writer.begin(record)
            most = self._settings.window_messages_max * self._settings.batch_events_max
            taken = self._outbox.take_blocks(most)
            poison = self._writer.seal(
                [Entry(cast(AnyEvent, item.event), item.cause, item.wall_ms) for item in taken]
            )
            if poison:
                self._outbox.lost(BLOCKS, len(poison))

    async def _wait(self) -> None:
        wait_s = self._settings.detail_wait_ms / 1000
        await wait_for_more(self.wake, lambda: self._closing, wait_s)

    def _attempted(self, error: LedgerError | None) -> None:
        if error is not None and not self._troubled:
            logger.warning("detail of node %s waits for the ledger: %s", self._settings.node, error)
        self._troubled = error is not None
