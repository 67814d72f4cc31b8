"""Invariant 5: state is a fold. Every replica at every position has the state, and the index, that
a fold of the whole history has there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvferry.core.digest import digest
from kvferry.core.invariants import violations
from kvferry.core.state import State
from kvferry.index.spaces import ResidencyIndex
from kvferry.replay.step import step

if TYPE_CHECKING:
    from tests.sim.world.world import World

CHECK = "fold"


def check(world: World) -> None:
    """At the end."""
    if world.ledger is None:
        return
    # A replica that passed over what the stream's limits took has another state than the whole
    # history gives, and its snapshots hand it on: nodes sent it inventories, see ``ledger``.
    comparable = not world.passed_over
    wanted: dict[int, list[tuple[str, str]]] = {}
    for replica in world.past_replicas:
        coordinator = replica.coordinator
        if coordinator is None:
            continue
        state = coordinator.projector.state
        for what in violations(state):
            world.violations.add(CHECK, f"{replica.name}: {what}")
        if replica.process.alive:
            _index(world, replica.name, coordinator.projector)
        if not comparable:
            continue
        if replica.process.alive and coordinator.projector.loaded:
            replica.digests[state.position] = digest(state)
        for position, found in replica.digests.items():
            wanted.setdefault(position, []).append((replica.name, found))
    whole = State()
    for stored in world.ledger.history:
        step(whole, stored)
        for name, found in wanted.pop(stored.seq, ()):
            if found != digest(whole):
                world.violations.add(CHECK, f"{name} at {stored.seq} is not the fold up to there")


def _index(world: World, name: str, projector: Any) -> None:
    """The index that followed the state answers as one that is built from it."""
    fresh = ResidencyIndex.from_state(projector.state)
    for space_name, space in projector.state.spaces.items():
        mine, other = projector.index.space(space_name), fresh.space(space_name)
        for offer in space.offers.values():
            if mine.holders(offer.hashes) != other.holders(offer.hashes):
                world.violations.add(CHECK, f"the index of {name} is not that of its state")
                return
        if mine.offers() != other.offers():
            world.violations.add(CHECK, f"the index of {name} lists other offers than its state")
