"""The one writer of decisions: lead, decide, append after the predecessor, fold, then act."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from kvferry.core.commands import Command, TakeLead
from kvferry.core.decide import Decision, decide
from kvferry.core.effects import Effect
from kvferry.core.events import AnyEvent
from kvferry.core.state import SpaceState
from kvferry.daemon.decision_lane import DecisionLane
from kvferry.daemon.projector import Projector
from kvferry.daemon.standing import NotLeader, Standing
from kvferry.errors import LedgerUnavailable, WrongLastSequence
from kvferry.ports.log import FACTS_STREAM, LogPort

log = logging.getLogger("kvferry.daemon")

CONFLICTS_MAX = 8
CLAIMS_MAX = 64
"""Terms of one space that are remembered as our own."""

Perform = Callable[[Effect], Awaitable[None]]


class Decider:
    """Decides for spaces, one decision of a space at a time.

    Each append names the last message of the space's coord subject that the state included when
    the decision was made. So a decision that another replica overtook is never stored; it is
    made again from what the ledger says then.
    """

    def __init__(
        self,
        log_port: LogPort,
        projector: Projector,
        standing: Standing,
        perform: Perform,
        *,
        cost: str,
        timeout_s: float,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.decided = 0
        self.conflicts = 0
        self._log = log_port
        self._projector = projector
        self._standing = standing
        self._perform = perform
        self._cost = cost
        self._timeout_s = timeout_s
        self._now_ms = now_ms
        self._lane = DecisionLane(log_port, standing.replica, now_ms)
        self._locks: dict[str, asyncio.Lock] = {}
        self._held: dict[str, tuple[int, int]] = {}
        self._claimed: dict[str, deque[int]] = {}
        """Terms that this process stood for by space, whatever came of it."""

    def term(self) -> int:
        """The highest term that this replica holds."""
        return max((term for term, _ in self._held.values()), default=0)

    def term_in(self, space: str) -> int:
        """The term with which this replica leads the space now; 0 when it does not."""
        held = self._held.get(space)
        return held[0] if held is not None and self._standing.leading and self.leads(space) else 0

    def leads(self, space: str) -> bool:
        """Whether this process leads the space as far as the state knows."""
        held = self._held.get(space)
        known = self._projector.state.spaces.get(space)
        if held is None or known is None:
            return False
        return (known.term, known.leader) == (held[0], self._standing.replica)

    async def lead(self, space: str) -> None:
        """Take the lead of a space if it is not held yet.

        Raises:
            NotLeader: another replica holds it, or this one should not lead.
            LedgerError: the ledger does not take it.
        """
        async with self._lock(space):
            await self._bounded(self._retrying(space, None))

    async def command(
        self, space: str, command: Command | None, *, certain: bool = False
    ) -> Decision:
        """Decide a command, store its events, and perform its effects.

        Args:
            space: whose state is decided on.
            command: what to decide; None only makes ``certain`` that the state is the present one.
            certain: where nothing is to be stored, look whether another leader has stored
                something meanwhile. Then that nothing was stored says as much as if it had been.

        Returns:
            the decision as it was stored; without events if the state made the command moot.

        Raises:
            NotLeader: another replica holds the space, or this one should not lead.
            LedgerError: the ledger does not take it; it may be stored all the same.
        """
        async with self._lock(space):
            decision = await self._bounded(self._retrying(space, command, certain))
        for effect in decision.effects:
            await self._perform(effect)
        return decision

    async def react(self, command: Command) -> None:
        """Perform the effects of a command that needs no record, such as a heartbeat."""
        for effect in decide(self._projector.state, command, self._now_ms()).effects:
            await self._perform(effect)

    def _lock(self, space: str) -> asyncio.Lock:
        return self._locks.setdefault(space, asyncio.Lock())

    async def _bounded(self, work: Awaitable[Decision]) -> Decision:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError:
            raise LedgerUnavailable(
                f"the decision was not stored and folded within {self._timeout_s:g} s; check the "
                "ledger with `kvferry doctor`"
            ) from None

    async def _retrying(
        self, space: str, command: Command | None, certain: bool = False
    ) -> Decision:
        for _ in range(CONFLICTS_MAX):
            try:
                await self._hold(space)
                decision = Decision()
                if command is not None:
                    decision = decide(self._projector.state, command, self._now_ms())
                events = tuple(event for _, event in decision.events)
                if events:
                    await self._append(space, self._held[space][0], events)
                elif certain:
                    await self._check(space)
                return decision
            except WrongLastSequence:
                self.conflicts += 1
                log.info("another coordinator wrote for space %s first; deciding afresh", space)
            except BaseException:
                # What was stored is not known: the next decision looks before it writes.
                self._forget(space)
                raise
        raise NotLeader(self._space(space).leader)

    async def _hold(self, space: str) -> None:
        """Lead the space with a state that includes every decision for it.

        Raises:
            NotLeader, LedgerError
        """
        if not self._standing.leading:
            rival = self._standing.rival()
            raise NotLeader(rival.replica if rival is not None else "")
        if self.leads(space) and self._held[space][1] > 0:
            return
        seq, decides = await self._lane.last(space)
        if not seq:
            seq = await self._lane.open(space, self._space(space).term)
        await self._projector.reached(seq, self._timeout_s)
        known = self._space(space)
        ours = known.leader == self._standing.replica
        # An election whose answer was lost may be stored all the same, and late.
        if ours and known.term in self._claimed.get(space, ()) and decides:
            self._held[space] = (known.term, seq)
            return
        # Where the stream has dropped every decision, a later leader's may have been among them.
        held = self._held.pop(space, None)
        if held is not None and ours and self._newer(space, known.term, held[0]):
            self._standing.leading = False
            log.error(
                "another coordinator also calls itself %s and took space %s; give each its own "
                "--replica name, this one stands by",
                self._standing.replica,
                space,
            )
        if not self._standing.may_take(known.leader):
            raise NotLeader(known.leader)
        await self._elect(space, seq)

    def _newer(self, space: str, term: int, held: int) -> bool:
        """Whether a term that is led under our name is a living namesake's. An older one was led
        by a process before us; our own election was not stored then."""
        return term > held and term not in self._claimed.get(space, ())

    async def _elect(self, space: str, last: int) -> None:
        bounds = await self._log.bounds(FACTS_STREAM)
        # Where the stream lost its beginning, and no checkpoint stood in for it, the state may
        # not know every term. None of them is higher than the sequence that it was stored at.
        above = bounds.last if bounds.first > 1 else 0
        command = TakeLead(
            space=space, replica=self._standing.replica, cost=self._cost, above=above
        )
        decision = decide(self._projector.state, command, self._now_ms())
        events = tuple(event for _, event in decision.events)
        term = max(self._space(space).term, above) + 1
        self._held[space] = (term, last)
        self._claimed.setdefault(space, deque(maxlen=CLAIMS_MAX)).append(term)
        await self._append(space, term, events)
        log.info("leading space %s with term %d", space, term)

    async def _append(self, space: str, term: int, events: tuple[AnyEvent, ...]) -> None:
        """Store events after the predecessor and fold up to them."""
        try:
            seq = await self._lane.append(space, term, events, after=self._held[space][1])
        except WrongLastSequence:
            self._forget(space)
            raise
        self._held[space] = (term, seq)
        await self._projector.reached(seq, self._timeout_s)
        self.decided += len(events)

    async def _check(self, space: str) -> None:
        """
        Raises:
            WrongLastSequence: another leader has decided since.
        """
        if (await self._lane.last(space)).seq != self._held[space][1]:
            self._forget(space)
            raise WrongLastSequence(f"another coordinator wrote for space {space}")

    def _forget(self, space: str) -> None:
        """Look again before the next decision; the term stays, to know a namesake's from ours."""
        if space in self._held:
            self._held[space] = (self._held[space][0], 0)

    def _space(self, name: str) -> SpaceState:
        return self._projector.state.spaces.get(name) or SpaceState()
