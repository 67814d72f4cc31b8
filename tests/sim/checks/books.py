"""Invariant 8 for events: handed over = stored + declared gaps, in lanes without a hole."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kvferry.core.envelope import Batch
from kvferry.core.events import BLOCKS, FACTS, Gap, Inventory, NodeClosed, NodeJoined
from kvferry.replay.step import read_batch

if TYPE_CHECKING:
    from tests.sim.world.node import Node
    from tests.sim.world.world import World

CHECK = "conservation"
OWN = (NodeJoined, NodeClosed, Inventory, Gap)
"""What a node's agent writes itself; all else was handed over by the engine."""

Lanes = dict[tuple[int, str], dict[int, object]]
"""Epoch and lane to sequence to event, of one process life."""


def check(world: World) -> None:
    """At the end."""
    if world.ledger is None:
        return
    lives: dict[str, Lanes] = defaultdict(lambda: defaultdict(dict))
    for stored in [*world.ledger.history, *world.ledger.details]:
        batch = read_batch(stored)
        if batch.lane in (FACTS, BLOCKS):
            _sort_in(world, lives[batch.incarnation][batch.epoch, batch.lane], batch)
    for node in world.nodes.values():
        if node.side is not None and node.side.agent.state == "joined":
            _balance(world, node, lives[node.side._incarnation])


def _sort_in(world: World, lane: dict[int, object], batch: Batch) -> None:
    for seq, entry in enumerate(batch.entries, start=batch.seq):
        known = lane.setdefault(seq, entry.event)
        if known != entry.event:
            world.violations.add(
                CHECK, f"{batch.node} wrote two events as {batch.lane} {batch.epoch}/{seq}"
            )


def _balance(world: World, node: Node, lanes: Lanes) -> None:
    assert node.side is not None
    gaps = {FACTS: 0, BLOCKS: 0}
    stored = {FACTS: 0, BLOCKS: 0}
    for (epoch, lane), events in lanes.items():
        if sorted(events) != list(range(1, len(events) + 1)):
            world.violations.add(CHECK, f"lane {lane} of epoch {epoch} of {node.name} has holes")
        stored[lane] += sum(not isinstance(event, OWN) for event in events.values())
        for event in events.values():
            if isinstance(event, Gap):
                gaps[event.lane] += event.count
    for lane in (FACTS, BLOCKS):
        counts = node.side.outbox.counts(lane)
        books = (counts.handed, counts.stored, counts.dropped)
        if counts.handed != counts.stored + counts.dropped:
            world.violations.add(CHECK, f"{node.name} {lane}: handed, stored, dropped {books}")
        if stored[lane] != counts.stored or gaps[lane] != counts.dropped:
            world.violations.add(
                CHECK,
                f"{node.name} {lane}: the ledger has {stored[lane]} events and gaps of "
                f"{gaps[lane]}; handed, stored, dropped {books}",
            )
