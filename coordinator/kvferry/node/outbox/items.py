"""What waits in the outbox: an event, or the hole that dropped ones left."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvferry.core.events import (
    Event,
    Evicted,
    Requested,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.node.agent.settings import Identity


class LaneCounts(msgspec.Struct, frozen=True):
    """One lane's books: ``handed = stored + waiting + dropped``, always."""

    handed: int
    stored: int
    dropped: int

    @property
    def waiting(self) -> int:
        """Accepted and not yet acknowledged by the ledger."""
        return self.handed - self.stored - self.dropped


class Waiting(msgspec.Struct, frozen=True):
    """An event that waits, with what caused it and when it was handed over."""

    event: Event
    cause: str
    wall_ms: int


MIRRORED = (Retained, Evicted, Requested, Transferred, TransferFailed)
"""Events that change what an inventory lists."""


class Hole:
    """Consecutive dropped facts.

    It remembers those that an inventory depends on, so that the mirror follows the engine
    across the hole.

    Attributes:
        count: facts dropped.
        events: dropped facts that change the inventory, in order; at most ``keys_max``.
        blind: more were dropped than ``events`` could keep, so the mirror cannot follow.
    """

    __slots__ = ("blind", "count", "events", "keys_max")

    def __init__(self, *, keys_max: int) -> None:
        self.keys_max = keys_max
        self.count = 0
        self.events: list[Event] = []
        self.blind = False

    def add(self, event: Event) -> None:
        """Count a dropped fact."""
        self.count += 1
        if self.blind or not isinstance(event, MIRRORED):
            return
        if len(self.events) < self.keys_max:
            self.events.append(event)
        else:
            self.blind = True
            self.events.clear()

    def add_unknown(self) -> None:
        """Count a dropped fact that nobody looked at."""
        self.count += 1
        self.blind = True
        self.events.clear()


class Rejoin(msgspec.Struct, frozen=True):
    """From here on the facts belong to this identity."""

    identity: Identity


FactItem: TypeAlias = Waiting | Hole | Rejoin
