"""The sign of life that a joined node gives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kvferry.core.events import BLOCKS, FACTS
from kvferry.core.messages import Heartbeat, encode, heartbeat_subject
from kvferry.errors import LedgerError
from kvferry.node.agent.lanes import Record
from kvferry.node.outbox.outbox import Outbox
from kvferry.ports.log import BusPort

logger = logging.getLogger("kvferry.node")

GAUGES_MAX = 64
"""Names that a node may show; more are ignored."""


class Gauges:
    """Numbers that ``kvferry status`` shows of a node. Set on any thread."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def set(self, name: str, value: float) -> None:
        """Show ``value`` as ``name`` from the next heartbeat on."""
        if name in self._values or len(self._values) < GAUGES_MAX:
            self._values[name] = float(value)

    def read(self) -> dict[str, float]:
        """A copy."""
        return self._values.copy()


class HeartbeatLoop:
    """Publishes a heartbeat every ``every_s`` once the node's record stands in the ledger.

    Args:
        check: called before each, to see whether the ledger is there.
    """

    def __init__(
        self,
        node: str,
        bus: BusPort,
        outbox: Outbox,
        gauges: Gauges,
        *,
        every_s: float,
        published: Callable[[], Record | None],
        check: Callable[[], bool],
    ) -> None:
        self._node = node
        self._bus = bus
        self._outbox = outbox
        self._gauges = gauges
        self._every_s = every_s
        self._published = published
        self._check = check

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            record = self._published()
            if self._check() and record is not None:
                await self._beat(record)
            await asyncio.sleep(self._every_s)

    async def _beat(self, record: Record) -> None:
        beat = Heartbeat(
            node=self._node,
            space=record.space,
            incarnation=record.incarnation,
            epoch=record.epoch,
            gauges=self._gauges.read() | self._own(),
        )
        try:
            async with asyncio.timeout(self._every_s):
                await self._bus.publish(heartbeat_subject(record.space, self._node), encode(beat))
        except (LedgerError, TimeoutError) as error:
            logger.debug("a heartbeat of node %s was not sent: %s", self._node, error)

    def _own(self) -> dict[str, float]:
        facts, blocks = self._outbox.counts(FACTS), self._outbox.counts(BLOCKS)
        return {
            "outbox_pressure": self._outbox.pressure,
            "outbox_facts_waiting": facts.waiting,
            "outbox_facts_dropped": facts.dropped,
            "outbox_blocks_waiting": blocks.waiting,
            "outbox_blocks_dropped": blocks.dropped,
        }
