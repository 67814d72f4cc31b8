"""The outbox: where engine threads leave events, and the agent's thread picks them up.

Two lanes. *Facts* must be stored: leases, transfers, requests. They are bounded by admission:
a transfer's outcome reserves its slot before the transfer starts, and at 80 % no new lease or
transfer starts. *Blocks* is detail: it may overflow, and then a gap says how much is missing.

A hand-over appends to a deque and touches no socket. The locks here guard a few integers; the
agent's thread never holds one of them while it waits for anything. Handing over a step takes no
lock and runs no Python of ours: it is the deque's own ``append``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from kvferry.core.events import BLOCKS, FACTS, Event
from kvferry.errors import ConfigError
from kvferry.node.agent.settings import Identity
from kvferry.node.outbox.items import FactItem, Hole, LaneCounts, Rejoin, Waiting
from kvferry.node.outbox.steps import StepTranslator, Translate

ADMISSION_SHARE = 0.8
"""Share of the facts lane from which on no lease and no transfer may start."""


class Outbox:
    """Events on their way from the engine to the ledger. Every method may be called anywhere.

    Args:
        facts_max: facts that may wait, reserved slots included.
        blocks_max: detail events that may wait, and steps that may wait to be translated.
        translate: what turns a handed-over step into events; needed for ``hand_over`` only.

    Attributes:
        hand_over: leaves one engine step's material, to be translated on the agent's thread. Of
            more than ``blocks_max`` the oldest are lost; whoever next looks finds the bound
            exceeded and counts at least one missing event of the blocks lane.
    """

    def __init__(
        self,
        *,
        facts_max: int = 8192,
        blocks_max: int = 65536,
        translate: Translate | None = None,
    ) -> None:
        if facts_max < 16 or blocks_max < 1:
            raise ConfigError(
                f"outbox bounds facts_max={facts_max}, blocks_max={blocks_max} are too small; "
                "use at least 16 and 1"
            )
        self._facts_max = facts_max
        self._blocks_max = blocks_max
        self._admit_below = int(facts_max * ADMISSION_SHARE)
        self._translator = StepTranslator(translate)
        self._lock = threading.Lock()
        self._facts: deque[FactItem] = deque()
        self._blocks: deque[Waiting] = deque()
        # One more than may wait: a full deque says that the bound was exceeded.
        self._steps: deque[object] = deque(maxlen=blocks_max + 1)
        self.hand_over: Callable[[object], None] = self._steps.append
        self._held = 0
        self._reserved = 0
        self._handed = {FACTS: 0, BLOCKS: 0}
        self._stored = {FACTS: 0, BLOCKS: 0}
        self._dropped = {FACTS: 0, BLOCKS: 0}
        self._blocks_gap = 0
        self._steps_bear_facts = False
        self._closed = ""
        self._keeping = True

    # --- engine threads ----------------------------------------------------------------------

    def facts(self, event: Event, cause: str = "") -> None:
        """Leave a fact. With the lane full it is dropped, and the epoch ends with a gap."""
        wall_ms = int(time.time() * 1000)
        with self._lock:
            self._leave_fact(event, cause, wall_ms)

    def admit(self) -> bool:
        """Whether a new lease or transfer may start."""
        return self._held + self._reserved < self._admit_below and not self._closed

    def reserve(self) -> bool:
        """Reserve the slot of a transfer's outcome; False when nothing is admitted."""
        with self._lock:
            if self._closed or self._held + self._reserved >= self._admit_below:
                return False
            self._reserved += 1
            return True

    def settle(self, event: Event, cause: str = "") -> None:
        """Leave an outcome in a reserved slot, where it always finds room.

        Without a reservation it is a fact like any other.
        """
        wall_ms = int(time.time() * 1000)
        with self._lock:
            self._reserved = max(0, self._reserved - 1)
            self._leave_fact(event, cause, wall_ms)

    def unreserve(self) -> None:
        """Give a reserved slot back: the transfer never began."""
        with self._lock:
            self._reserved = max(0, self._reserved - 1)

    def blocks(self, event: Event, cause: str = "") -> None:
        """Leave a detail event. With the lane full it is dropped and counted."""
        wall_ms = int(time.time() * 1000)
        with self._lock:
            self._handed[BLOCKS] += 1
            if self._keeping and len(self._blocks) < self._blocks_max:
                self._blocks.append(Waiting(event, cause, wall_ms))
                return
            self._dropped[BLOCKS] += 1
            if self._keeping:
                self._blocks_gap += 1

    # --- anybody -----------------------------------------------------------------------------

    @property
    def pressure(self) -> float:
        """Share of the facts lane in use, reserved slots included."""
        return (self._held + self._reserved) / self._facts_max

    @property
    def reserved(self) -> int:
        """Outcome slots that are reserved now."""
        return self._reserved

    def counts(self, lane: str) -> LaneCounts:
        """The books of ``facts`` or ``blocks``."""
        with self._lock:
            return LaneCounts(self._handed[lane], self._stored[lane], self._dropped[lane])

    @property
    def untranslated(self) -> int:
        """Steps that wait for :meth:`work`."""
        return len(self._steps)

    def rejoin(self, identity: Identity) -> None:
        """The facts left from now on belong to another process life or another self-description."""
        with self._lock:
            if self._keeping:
                self._facts.append(Rejoin(identity))

    # --- the agent's thread ------------------------------------------------------------------

    def work(self, steps_max: int = 1024) -> bool:
        """Translate up to ``steps_max`` steps; True when some event waits in a lane."""
        for _ in range(min(steps_max, len(self._steps))):
            step = self._steps.popleft()
            # Looked at after the step was taken, for only this thread takes: steps that the
            # engine leaves meanwhile cannot hide that the deque was full.
            lost = len(self._steps) >= self._blocks_max
            events = None if lost else self._translator.events(step)
            if events is None:
                self._drop_step()
                continue
            for lane, event, cause in events:
                if lane == FACTS:
                    self._steps_bear_facts = True
                    self.facts(event, cause)
                else:
                    self.blocks(event, cause)
        return bool(self._facts or self._blocks)

    def has_facts(self) -> bool:
        """Whether :meth:`take_facts` would give something."""
        return bool(self._facts)

    def has_blocks(self) -> bool:
        """Whether :meth:`take_blocks` would give something."""
        return bool(self._blocks)

    def take_facts(self, most: int) -> list[FactItem]:
        """Up to ``most`` facts in order, with a :class:`Hole` where some were dropped.

        They go on counting as waiting until :meth:`stored` says that the ledger has them.
        """
        taken: list[FactItem] = []
        while self._facts and len(taken) < most:
            item = self._facts.popleft()
            taken.append(item)
            if isinstance(item, Hole):
                # An engine thread that still holds this hole does so under the lock.
                with self._lock:
                    pass
        return taken

    def take_blocks(self, most: int) -> list[Waiting]:
        """Up to ``most`` detail events in order."""
        return [self._blocks.popleft() for _ in range(min(most, len(self._blocks)))]

    def take_blocks_gap(self) -> int:
        """Detail events dropped since the last call."""
        with self._lock:
            gap, self._blocks_gap = self._blocks_gap, 0
            return gap

    def stored(self, lane: str, count: int) -> None:
        """The ledger acknowledged ``count`` events that were taken."""
        with self._lock:
            self._stored[lane] += count
            if lane == FACTS:
                self._held -= count

    def lost(self, lane: str, count: int) -> None:
        """``count`` events that were taken can never be stored.

        A gap of the blocks lane is declared like any other; for facts the caller declares it.
        """
        with self._lock:
            self._dropped[lane] += count
            if lane == FACTS:
                self._held -= count
            else:
                self._blocks_gap += count

    def discard(self, why: str = "") -> None:
        """Keep nothing from now on, and drop what waits.

        With ``why`` nothing is admitted any more either: somebody else owns the name, or the
        agent stopped. Without it there is no ledger by choice, and transfers go on.
        """
        with self._lock:
            self._keeping = False
            self._closed = why
            for lane in (FACTS, BLOCKS):
                self._dropped[lane] = self._handed[lane] - self._stored[lane]
            self._held = 0
            self._facts.clear()
            self._blocks.clear()

    # --- inner -------------------------------------------------------------------------------

    def _leave_fact(self, event: Event, cause: str, wall_ms: int) -> None:
        self._handed[FACTS] += 1
        if not self._keeping:
            self._dropped[FACTS] += 1
        elif self._held + self._reserved >= self._facts_max:
            self._dropped[FACTS] += 1
            self._open_hole().add(event)
        else:
            self._held += 1
            self._facts.append(Waiting(event, cause, wall_ms))

    def _open_hole(self) -> Hole:
        try:
            last: FactItem | None = self._facts[-1]
        except IndexError:  # empty, perhaps since a moment ago: the agent takes without the lock
            last = None
        if isinstance(last, Hole):
            return last
        hole = Hole(keys_max=self._facts_max)
        self._facts.append(hole)
        return hole

    def _drop_step(self) -> None:
        with self._lock:
            self._handed[BLOCKS] += 1
            self._dropped[BLOCKS] += 1
            if not self._keeping:
                return
            self._blocks_gap += 1
            if self._steps_bear_facts:
                # The step may have held facts: only a fresh inventory makes the record whole.
                self._handed[FACTS] += 1
                self._dropped[FACTS] += 1
                self._open_hole().add_unknown()
