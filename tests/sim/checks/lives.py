"""Invariant 1 for processes: what one life of a node is asked for, no other one answers; and what
one of them asks for is not taken for what another one did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry.core.events import PinEnded, Requested

if TYPE_CHECKING:
    from tests.sim.world.world import World

CHECK = "lives"


def check(world: World) -> None:
    """At the end: each transfer is one life's, and its pins stood at the process that it named."""
    incarnations = {
        node.life: node.side._incarnation for node in world.past if node.side is not None
    }
    asked: dict[str, tuple[str, str]] = {}
    for _, life, event in world.facts:
        if isinstance(event, Requested) and event.transfer:
            first, _ = asked.setdefault(event.transfer, (life, event.source_incarnation))
            if first != life:
                world.violations.add(CHECK, f"{event.transfer} is of {first} and of {life}")
    for node, life, event in world.facts:
        if not isinstance(event, PinEnded) or not event.granted:
            continue
        _, meant = asked.get(event.transfer, ("", ""))
        if meant and meant != incarnations[life]:
            world.violations.add(
                CHECK,
                f"{event.transfer} of {event.target} was pinned at process {incarnations[life]} "
                f"of {node}, and meant {meant}",
            )
