"""One lane of this node on its way into the ledger: batches, in order, until acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.errors import CodecError, LedgerError, LedgerUnavailable
from kvferry.ledger.codec import encode, split
from kvferry.ledger.subjects import lane_subject
from kvferry.node.agent.backoff import Backoff
from kvferry.node.agent.settings import NodeSettings
from kvferry.ports.log import LogPort

logger = logging.getLogger("kvferry.node")


LOOK_S = 1.0
"""A lane with nothing to do looks again after so long, should it miss a wake-up."""


async def wait_for_more(
    wake: asyncio.Event, closing: Callable[[], bool], batch_wait_s: float = 0.0
) -> None:
    """Wait until a lane has something to say, and a moment more for others to share its message."""
    try:
        async with asyncio.timeout(LOOK_S):
            await wake.wait()
            if batch_wait_s and not closing():
                await asyncio.sleep(batch_wait_s)
    except TimeoutError:
        pass
    wake.clear()


class Record(msgspec.Struct, frozen=True):
    """The unbroken record that a batch belongs to."""

    space: str
    incarnation: str
    epoch: int


class _Sealed(msgspec.Struct, frozen=True):
    """A batch as it goes out, again and again, until it is acknowledged."""

    subject: str
    data: bytes
    message_id: str
    handed: int
    """How many of its events came through the outbox."""


class LaneWriter:
    """Seals entries into batches and stores them.

    A batch once sealed never changes, so that resending it under its message id is safe.

    Args:
        lane: ``facts`` or ``blocks``.
        on_stored: called with the number of outbox events that the ledger acknowledged.
        on_trouble: called with an error for every failed attempt, and with None for a good one.
    """

    def __init__(
        self,
        lane: str,
        settings: NodeSettings,
        log: LogPort,
        *,
        on_stored: Callable[[int], None],
        on_trouble: Callable[[LedgerError | None], None],
    ) -> None:
        self.lane = lane
        self._settings = settings
        self._log = log
        self._on_stored = on_stored
        self._on_trouble = on_trouble
        self._sealed: deque[_Sealed] = deque()
        self._record: Record | None = None
        self._next_seq = 1

    @property
    def record(self) -> Record | None:
        """The record that :meth:`seal` now writes to."""
        return self._record

    @property
    def last_seq(self) -> int:
        """Sequence of the last event sealed in this record."""
        return self._next_seq - 1

    @property
    def idle(self) -> bool:
        """Whether everything sealed is acknowledged."""
        return not self._sealed

    def begin(self, record: Record) -> None:
        """Write to this record from now on; its sequence starts at 1."""
        self._record = record
        self._next_seq = 1

    def seal(self, entries: Sequence[Entry], *, handed: bool = True) -> list[Entry]:
        """Make batches of the entries; returns those that cannot be encoded.

        ``handed`` says whether the entries came through the outbox. What the agent itself says is
        one message if that fits: a record's beginning without its inventory is of no use to a
        reader whom the stream's limits took the other part from.
        """
        poison: list[Entry] = []
        most = self._settings.batch_events_max if handed else max(1, len(entries))
        for at in range(0, len(entries), most):
            poison += self._seal_batch(tuple(entries[at : at + most]), handed)
        return poison

    async def flush(self) -> None:
        """Send until everything sealed is acknowledged, however long that takes.

        The caller bounds it by cancelling; a later call sends the same batches again.
        """
        backoff = Backoff(self._settings)
        while self._sealed:
            most = min(len(self._sealed), self._settings.window_messages_max)
            window = [self._sealed[i] for i in range(most)]
            try:
                await self._log.append_many([(s.subject, s.data, s.message_id) for s in window])
            except LedgerError as error:
                self._on_trouble(error)
                # A refusal is for an operator to cure; asking often does not help.
                await backoff.wait(longest=not isinstance(error, LedgerUnavailable))
                continue
            for _ in window:
                self._sealed.popleft()
            self._on_stored(sum(s.handed for s in window))
            self._on_trouble(None)
            backoff = Backoff(self._settings)

    def _seal_batch(self, entries: tuple[Entry, ...], handed: bool) -> list[Entry]:
        """Encode as one message if that fits, else in smaller ones, else one by one."""
        try:
            self._add(entries, handed)
            return []
        except (CodecError, msgspec.MsgspecError, TypeError, ValueError, KeyError) as error:
            if len(entries) == 1:
                logger.error(
                    "event %s of lane %s cannot be written and counts as a gap: %s",
                    type(entries[0].event).__name__,
                    self.lane,
                    error,
                )
                return list(entries)
        try:
            groups = split(entries)
        except (msgspec.MsgspecError, TypeError, ValueError, KeyError):
            groups = [(entry,) for entry in entries]
        if len(groups) == 1:
            groups = [(entry,) for entry in entries]
        poison: list[Entry] = []
        for group in groups:
            poison += self._seal_batch(group, handed)
        return poison

    def _add(self, entries: tuple[Entry, ...], handed: bool) -> None:
        record = self._record
        if record is None:
            raise RuntimeError(f"lane {self.lane} has no record to write to; call begin first")
        batch = Batch(
            space=record.space,
            node=self._settings.node,
            incarnation=record.incarnation,
            epoch=record.epoch,
            lane=self.lane,
            seq=self._next_seq,
            entries=entries,
        )
        sealed = _Sealed(
            lane_subject(record.space, self._settings.node, self.lane),
            encode(batch),
            batch.message_id,
            len(entries) if handed else 0,
        )
        self._sealed.append(sealed)
        self._next_seq += len(entries)
