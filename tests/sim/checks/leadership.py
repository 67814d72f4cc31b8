"""Decisions are the leader's: none of a deposed one is stored, and none by anybody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry.core.events import COORD, LeaderElected
from kvferry.replay.step import read_batch

if TYPE_CHECKING:
    from tests.sim.world.world import World

CHECK = "leadership"


def check(world: World) -> None:
    """At the end."""
    if world.ledger is None:
        return
    elected: dict[str, tuple[int, str]] = {}
    for stored in world.ledger.history:
        batch = read_batch(stored)
        if batch.lane != COORD:
            continue
        term, leader = elected.get(batch.space, (0, ""))
        for entry in batch.entries:
            if isinstance(entry.event, LeaderElected):
                if batch.epoch <= term:
                    world.violations.add(CHECK, f"term {batch.epoch} follows term {term}")
                term, leader = batch.epoch, batch.node
                elected[batch.space] = (term, leader)
            elif (batch.epoch, batch.node) != (term, leader):
                world.violations.add(
                    CHECK,
                    f"{batch.node} with term {batch.epoch} decided {type(entry.event).__name__} "
                    f"at {stored.seq}, where {leader} leads with term {term}",
                )
