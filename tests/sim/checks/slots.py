"""A TileRT node decodes what its request wrote, and the ledger never lends it twice at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry.core.events import COORD, LeaderElected, SlotChanged
from kvferry.core.slots import ENDS
from kvferry.replay.step import read_batch

if TYPE_CHECKING:
    from tests.sim.world.world import World

CHECK = "slots"


def answered(world: World, request: str, read: str) -> None:
    """A router gives a client what a node decoded."""
    world.slots_answered += 1
    if read != request:
        world.violations.add(CHECK, f"the answer of {request} was decoded from {read or 'nothing'}")


def check(world: World) -> None:
    """At the end, over all that was ever stored."""
    if world.ledger is None:
        return
    term, highest = 0, 0
    lent: dict[str, int] = {}
    for stored in world.ledger.history:
        batch = read_batch(stored)
        if batch.lane != COORD:
            continue
        for entry in batch.entries:
            event = entry.event
            if isinstance(event, LeaderElected) and batch.space == "router":
                term = max(term, event.term)
            if not isinstance(event, SlotChanged) or event.term != term:
                continue
            if event.change == "granted":
                if event.node in lent:
                    world.violations.add(CHECK, f"{event.node} is lent twice at {stored.seq}")
                if event.fence <= highest:
                    world.violations.add(CHECK, f"fence {event.fence} again at {stored.seq}")
                highest = max(highest, event.fence)
                lent[event.node] = event.fence
            elif event.change in ENDS and lent.get(event.node) == event.fence:
                del lent[event.node]
