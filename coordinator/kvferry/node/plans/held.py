"""What the coordinator said is held in our space: spares requests that share nothing a plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from kvferry.core.held import HeldFilter
from kvferry.core.messages import Held
from kvferry.ids import SHORT_BYTES, unpack_short
from kvferry.ports.log import Reply

log = logging.getLogger("kvferry.node")

TRUSTED_S = 1.5
"""Without a word from the leader for so long, what it said counts no more and plans are asked."""


class HeldView:
    """The newest unbroken series of :class:`Held` messages.

    A wrong no costs a recompute, never a wrong answer; so it says no only of what it is sure of.
    Engine threads ask :meth:`lacks`; the rest belongs to the agent's thread.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decode = msgspec.msgpack.Decoder(Held).decode
        self._last: Held | None = None
        self._filter: HeldFilter | None = None
        self._heard_s = float("-inf")

    # --- any thread --------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Stream sequence up to which every offer is known; 0 while nothing is."""
        last = self._last
        return last.position if last is not None and self._filter is not None else 0

    def lacks(self, chain_hash: bytes) -> bool:
        """Whether no node of the space offers this sampled block, for certain enough."""
        known = self._filter
        if known is None or self._clock() - self._heard_s > TRUSTED_S:
            return False
        return not known.might_hold(int.from_bytes(chain_hash[:SHORT_BYTES], "big"))

    # --- the agent's thread ------------------------------------------------------------------

    async def heard(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """The bus handler for :class:`Held` messages."""
        try:
            said = self._decode(data)
            self._take(said)
        except (msgspec.MsgspecError, ValueError) as error:
            self._filter = None
            log.warning("what is held cannot be read on %s; plans are asked: %s", subject, error)

    def leader(self, replica: str) -> None:
        """A leader announced itself: what another one said is not followed up any more."""
        if self._last is not None and replica != self._last.replica:
            self._filter = None

    def _take(self, said: Held) -> None:
        last = self._last
        if self._clock() - self._heard_s > TRUSTED_S:
            last = None
        if last is not None and (said.term, said.replica) < (last.term, last.replica):
            return  # A deposed leader that does not know it yet.
        if said.bits:
            known: HeldFilter | None = HeldFilter(said.bits)
        elif last is None or said.series != last.series or self._filter is None:
            return  # The whole comes with the next series.
        else:
            news = 1 if said.added else 0
            known = self._filter if said.number == last.number + news else None
            if known is not None:
                for one in unpack_short(said.added):
                    known.add(one)
        self._filter, self._last = known, said
        self._heard_s = self._clock()
