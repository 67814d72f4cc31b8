"""Forward and back through the messages around a point."""

from __future__ import annotations

import msgspec

from kvferry.core.state import State
from kvferry.errors import LedgerRefused
from kvferry.ports.log import FACTS_STREAM, LogPort, Stored
from kvferry.replay.fold import Progress, fold_to
from kvferry.replay.reading import between, closing, first_from
from kvferry.replay.step import skip_lost, step

BEHIND_MESSAGES = 256
"""How far behind a point the state is kept from which it is folded: the next steps back are
cheap then, wherever the ledger's own snapshots lie."""
REACH_MESSAGES = 1_024
"""A kept state further behind is not used: a snapshot of the ledger may be nearer."""
KEPT_STATES_MAX = 4


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the ledger: a message, and the state before and after it."""

    message: Stored | None
    """None before the first message that the ledger still has."""
    before: State
    after: State


class Walk:
    """Each step is a fold of its own, so what it shows is what any other fold comes to."""

    def __init__(self, log: LogPort) -> None:
        self._log = log
        self._kept: dict[int, bytes] = {}
        """States as msgpack by position, the one used last at the end."""
        self._here: Place | None = None

    async def begin(self, at: State, progress: Progress | None = None) -> Place:
        """Stand at the last message of a folded state."""
        return await self._stand(at, progress)

    async def forward(self) -> Place | None:
        """One message on; None at the ledger's present end."""
        here = self._standing()
        bounds = await self._log.bounds(FACTS_STREAM)
        if here.after.position >= bounds.last:
            return None
        message = await first_from(self._log, FACTS_STREAM, here.after.position + 1)
        if message is None:
            return None
        return self._apply(here.after, message)

    async def back(self, progress: Progress | None = None) -> Place | None:
        """One message back; None where nothing earlier can be folded."""
        here = self._standing()
        if here.message is None:
            return None
        return await self._stand(here.before, progress)

    async def _stand(self, at: State, progress: Progress | None = None) -> Place:
        bounds = await self._log.bounds(FACTS_STREAM)
        message = None
        if at.position >= bounds.first:
            message = await first_from(self._log, FACTS_STREAM, at.position)
        if message is None or message.seq != at.position:
            self._here = Place(message=None, before=at, after=at)
            return self._here
        before = await self._state_at(at.position - 1, bounds.first - 1, progress)
        return self._apply(before, message)

    async def _state_at(self, seq: int, floor: int, progress: Progress | None) -> State:
        near = [at for at in self._kept if at <= seq <= at + REACH_MESSAGES]
        if near:
            at = max(near)
            self._kept[at] = self._kept.pop(at)
            state = msgspec.msgpack.decode(self._kept[at], type=State)
        else:
            base = max(seq - BEHIND_MESSAGES, floor)
            state = await self._fold_to(base, floor, progress)
            self._keep(base, state)
        if state.position < seq:
            rest = between(self._log, FACTS_STREAM, state.position + 1, seq)
            async with closing(rest) as messages:
                async for stored in messages:
                    step(state, stored)
        return state

    async def _fold_to(self, seq: int, floor: int, progress: Progress | None) -> State:
        try:
            return await fold_to(self._log, to_seq=seq, progress=progress)
        except LedgerRefused:
            # Nothing tells the state there. A fold to a later point begins like this too.
            state = State()
            skip_lost(state, floor + 1)
            return state

    def _keep(self, at: int, state: State) -> None:
        self._kept[at] = msgspec.msgpack.encode(state)
        if len(self._kept) > KEPT_STATES_MAX:
            del self._kept[next(iter(self._kept))]

    def _apply(self, before: State, message: Stored) -> Place:
        after = copied(before)
        step(after, message)
        self._here = Place(message=message, before=before, after=after)
        return self._here

    def _standing(self) -> Place:
        assert self._here is not None, "begin() comes first"
        return self._here


def copied(state: State) -> State:
    """A state that changes on its own."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
