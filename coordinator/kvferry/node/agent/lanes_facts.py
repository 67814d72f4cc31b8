"""The facts lane: epochs, inventories and the facts between them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from kvferry.core.envelope import Entry
from kvferry.core.events import (
    BLOCKS,
    FACTS,
    AnyEvent,
    Event,
    Gap,
    NodeClosed,
    NodeJoined,
    Retained,
)
from kvferry.errors import LedgerError
from kvferry.node.agent.lanes import LaneWriter, Record, wait_for_more
from kvferry.node.agent.mirror import Mirror
from kvferry.node.agent.settings import Identity, NodeSettings
from kvferry.node.outbox.items import FactItem, Hole, Rejoin, Waiting
from kvferry.node.outbox.outbox import Outbox
from kvferry.ports.log import LogPort

logger = logging.getLogger("kvferry.node")


Offers = Callable[[], Iterable[Retained]]
"""The engine's own list of what it offers, asked for on the agent's thread."""


class Standing(NamedTuple):
    """What a node holds, and the place in its record that this is true at."""

    record: Record
    seq: int
    held: Mirror


class FactsLane:
    """Publishes facts in unbroken epochs; all of it runs on the agent's thread.

    Attributes:
        published: the record whose ``node_joined`` the ledger has acknowledged.
        troubled: whether the last attempt to store something failed.
        wake: set it when something may wait in the outbox.
    """

    def __init__(
        self,
        settings: NodeSettings,
        outbox: Outbox,
        log: LogPort,
        identity: Identity,
        *,
        inventory: Offers | None,
        on_trouble: Callable[[LedgerError | None], None],
        on_record: Callable[[Record], None],
    ) -> None:
        self.published: Record | None = None
        self.troubled = False
        self.wake = asyncio.Event()
        self._settings = settings
        self._outbox = outbox
        self._identity = identity
        self._inventory = inventory
        self._on_trouble = on_trouble
        self._on_record = on_record
        self._writer = LaneWriter(
            FACTS,
            settings,
            log,
            on_stored=lambda count: outbox.stored(FACTS, count),
            on_trouble=self._attempted,
        )
        self._mirror = Mirror(identity.block_size)
        self._taken: deque[FactItem] = deque()
        self._epoch = 0
        self._resync_why = ""
        self._record_since_s = 0.0
        self._closing = False

    def resync(self, why: str) -> bool:
        """Begin a new epoch with an inventory; False for what can only be a repetition."""
        young = time.monotonic() - self._record_since_s < self._settings.resync_pause_s
        return not young and self.ended(why)

    def ended(self, why: str) -> bool:
        """Begin a new epoch because this very one has ended; False if another one begins anyway.

        However young the epoch is: who names it cannot mean the one before.
        """
        if self._resync_why or self.published != self._writer.record:
            return False
        self._resync_why = why
        self.wake.set()
        return True

    def standing(self) -> Standing | None:
        """What is held as of the last event sealed; None before the first."""
        record = self._writer.record
        if record is None:
            return None
        return Standing(record, self._writer.last_seq, self._mirror)

    def close(self) -> None:
        """Publish what waits, then ``node_closed``; :meth:`run` then returns."""
        self._closing = True
        self.wake.set()

    async def run(self) -> None:
        """Publish until closed. After an error it may be run again, and goes on."""
        if self._epoch == 0:
            self._begin(None)
        while True:
            await self._writer.flush()
            self._note_record()
            if self._resync_why:
                logger.info("node %s begins a new epoch: %s", self._settings.node, self._resync_why)
                self._resync_why = ""
                self._begin(None)
                continue
            self._declare_blocks_gap()
            most = self._settings.window_messages_max * self._settings.batch_events_max
            if not self._taken:
                self._taken.extend(self._outbox.take_facts(most))
            if self._taken:
                self._consume()
            elif not self._closing:
                await self._wait()
            elif self._writer.idle:
                break
        self._seal([NodeClosed(incarnation=self._identity.incarnation)])
        await self._writer.flush()

    # --- inner -------------------------------------------------------------------------------

    async def _wait(self) -> None:
        await wait_for_more(self.wake, lambda: self._closing)

    def _attempted(self, error: LedgerError | None) -> None:
        self.troubled = error is not None
        self._on_trouble(error)

    def _note_record(self) -> None:
        record = self._writer.record
        if record is not None and record != self.published:
            self.published = record
            self._record_since_s = time.monotonic()
            self._on_record(record)

    def _consume(self) -> None:
        """Seal what was taken, up to the first item that is no event, and act on that one."""
        run: list[Entry] = []
        stop: FactItem | None = None
        while self._taken and stop is None:
            item = self._taken.popleft()
            if isinstance(item, Waiting):
                run.append(Entry(cast(AnyEvent, item.event), item.cause, item.wall_ms))
            else:
                stop = item
        poison = self._writer.seal(run)
        unwritten = {id(entry) for entry in poison}
        for entry in run:
            if id(entry) not in unwritten:
                self._mirror.apply(entry.event)
        if poison:
            self._outbox.lost(FACTS, len(poison))
            self._begin(Gap(lane=FACTS, count=len(poison), why="malformed"))
        if isinstance(stop, Hole):
            self._cross(stop)
        elif isinstance(stop, Rejoin):
            self._rejoin(stop.identity)

    def _cross(self, hole: Hole) -> None:
        logger.warning(
            "%d facts found no room in the outbox of node %s; a new epoch with an inventory "
            "follows. The ledger was away for too long, or facts_max is too small.",
            hole.count,
            self._settings.node,
        )
        if hole.blind:
            self._mirror.replace_offers(self._offers())
        for event in hole.events:
            self._mirror.apply(event)
        self._begin(Gap(lane=FACTS, count=hole.count))

    def _offers(self) -> list[Retained]:
        """The engine's own word; nothing where it gives none, for the index is only a hint."""
        if self._inventory is None:
            return []
        try:
            return list(self._inventory())
        except Exception:
            # The callback is the connector's; its failure costs offers, not the ledger.
            logger.exception("the engine's inventory failed; its offers are forgotten")
            return []

    def _rejoin(self, identity: Identity) -> None:
        if identity.incarnation != self._identity.incarnation:
            self._epoch = 0
            self._mirror = Mirror(identity.block_size)
        self._identity = identity
        self._begin(None)

    def _begin(self, gap: Gap | None) -> None:
        """A new epoch: who we are, what is missing before it, and what we hold."""
        self._epoch += 1
        who = self._identity
        self._writer.begin(Record(who.space, who.incarnation, self._epoch))
        events: list[Event] = [
            NodeJoined(
                incarnation=who.incarnation,
                epoch=self._epoch,
                address=who.address,
                block_size=who.block_size,
                components=who.components,
                backends=who.backends,
                blocks=who.blocks,
                block_bytes=who.block_bytes,
                host_blocks=who.host_blocks,
                lease_blocks=who.lease_blocks,
                lease_ms=who.lease_ms,
                watermark_blocks=who.watermark_blocks,
                retain_max_ms=who.retain_max_ms,
                min_pull_tokens=who.min_pull_tokens,
                warnings=who.warnings,
                version=who.version,
                role=who.role,
            )
        ]
        if gap is not None:
            events.append(gap)
        if self._epoch > 1:
            events.extend(self._mirror.parts())
        self._seal(events)

    def _declare_blocks_gap(self) -> None:
        count = self._outbox.take_blocks_gap()
        if count:
            self._seal([Gap(lane=BLOCKS, count=count)])

    def _seal(self, events: Sequence[Event]) -> None:
        """Seal events of the agent's own making."""
        wall_ms = int(time.time() * 1000)
        entries = [Entry(cast(AnyEvent, event), "", wall_ms) for event in events]
        self._writer.seal(entries, handed=False)
