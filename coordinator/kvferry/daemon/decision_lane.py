"""The coord subject of each space, as one process of a coordinator writes it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from typing import NamedTuple

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import COORD, AnyEvent
from kvferry.errors import CodecError
from kvferry.ledger.codec import decode, encode
from kvferry.ledger.subjects import coord_subject
from kvferry.ports.log import LogPort


class LastDecision(NamedTuple):
    """The last message that the stream has of a coord subject.

    Attributes:
        seq: its stream sequence; 0 where there is none.
        decides: whether it holds decisions. Before one that holds none there may have been some
            that the stream has dropped.
    """

    seq: int
    decides: bool


class DecisionLane:
    """Every message names the one before it, so that only one of several writers is next."""

    def __init__(self, log_port: LogPort, replica: str, now_ms: Callable[[], int]) -> None:
        self._log = log_port
        self._replica = replica
        self._now_ms = now_ms
        self._incarnation = secrets.token_hex(8)
        # One sequence over all spaces: message ids carry no space, and the log would take two
        # equal ones for the same message.
        self._seq = itertools.count(1)

    async def last(self, space: str) -> LastDecision:
        """
        Raises:
            LedgerError
        """
        stored = await self._log.last_of_subject(coord_subject(space))
        if stored is None:
            return LastDecision(0, False)
        try:
            decides = bool(decode(stored.data).entries)
        except CodecError:
            decides = True  # What cannot be read is of a newer version, which decided something.
        return LastDecision(stored.seq, decides)

    async def open(self, space: str, term: int) -> int:
        """Store a message without decisions where there is none, for an election to follow.

        That nothing is there fences nothing: whoever stood still after it looked, while another
        was elected and the stream's limits took that election, would find it true again.

        Returns:
            the message's stream sequence.

        Raises:
            WrongLastSequence: something is there by now.
            LedgerError: it may be stored all the same.
        """
        return await self.append(space, term, (), after=0)

    async def append(
        self, space: str, term: int, events: tuple[AnyEvent, ...], *, after: int
    ) -> int:
        """Store decisions as one message behind that at stream sequence ``after``.

        Returns:
            the message's stream sequence.

        Raises:
            WrongLastSequence: ``after`` is not the last one any more.
            LedgerError: they may be stored all the same.
        """
        first = next(self._seq)
        for _ in events[1:]:
            next(self._seq)
        wall_ms = self._now_ms()
        batch = Batch(
            space=space,
            node=self._replica,
            incarnation=self._incarnation,
            epoch=term,
            lane=COORD,
            seq=first,
            entries=tuple(Entry(event=event, wall_ms=wall_ms) for event in events),
        )
        return await self._log.append(
            coord_subject(space),
            encode(batch),
            message_id=batch.message_id,
            expected_last=after,
        )
