"""What a router process knows of its own leases."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvferry.core.slots import SlotNode
from kvferry.core.slots_messages import EndSlot, Lent, RenewSlots
from kvferry.node.slots.slot import Slot


class Leases:
    """Leases from the first question to the acknowledged end. Messages are numbered here, so that
    the coordinator can tell a lease that we never heard of from one that we ask for just now."""

    def __init__(
        self, holder: str, end_keep_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.holder = holder
        self.held: dict[Lent, Slot] = {}
        self.ending: dict[Lent, EndSlot] = {}
        """Ends that nobody acknowledged yet."""
        self.doubtful = False
        """A question got no answer: a lease may stand in our name that we do not know of."""
        self._asking: set[str] = set()
        self._keep_s = end_keep_s
        self._clock = clock
        self._kept_until: dict[Lent, float] = {}
        self._number = 0

    def number(self) -> int:
        """The next message's."""
        self._number += 1
        return self._number

    def begin(self, request: str) -> None:
        """We ask for a slot.

        Raises:
            ValueError: this request has one or asks for one already.
        """
        if request in self._asking or any(one.request == request for one in self.held.values()):
            raise ValueError(f"request {request} has a slot already, or asks for one")
        self._asking.add(request)

    def granted(self, node: SlotNode, fence: int, request: str, session: str, at: float) -> Slot:
        """The question of :meth:`begin` was answered."""
        slot = Slot(node, fence, request, session, at, self._clock)
        self.held[slot.lent] = slot
        return slot

    def asked(self, request: str, *, answered: bool) -> None:
        """The question of :meth:`begin` is over."""
        self._asking.discard(request)
        self.doubtful = self.doubtful or not answered

    def end(self, slot: Slot, how: str, why: str) -> EndSlot | None:
        """The lease is over for us; None if it was before."""
        slot.over()
        if self.held.pop(slot.lent, None) is None:
            return self.ending.get(slot.lent)
        ending = EndSlot(holder=self.holder, lent=slot.lent, how=how, why=why)
        self.ending[slot.lent] = ending
        self._kept_until[slot.lent] = self._clock() + self._keep_s
        return ending

    def lost(self, slot: Slot) -> None:
        """The coordinator says that it is not ours."""
        slot.over()
        self.held.pop(slot.lent, None)

    def ended(self, lent: Lent) -> None:
        """An end was acknowledged."""
        self.ending.pop(lent, None)
        self._kept_until.pop(lent, None)

    def given_up(self) -> list[EndSlot]:
        """Ends that were said for long enough; they are forgotten."""
        now = self._clock()
        late = [lent for lent, until in self._kept_until.items() if until <= now]
        ends = [self.ending[lent] for lent in late]
        for lent in late:
            self.ended(lent)
        return ends

    def statement(self) -> RenewSlots:
        """All that we have, to renew it."""
        return RenewSlots(
            holder=self.holder,
            number=self.number(),
            lent=(*self.held, *self.ending),
            asking=tuple(self._asking),
        )

    def sure_s(self) -> float:
        """The shortest time for which one of our leases holds without a sign; 0 without any."""
        return min((one.node.sure_s for one in self.held.values()), default=0.0)
