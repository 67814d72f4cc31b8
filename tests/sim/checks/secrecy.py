"""Invariant 7: who may see what. Forged hints are followed by nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.world.clients import EVIL

if TYPE_CHECKING:
    from tests.sim.world.world import World

CHECK = "secrecy"


def check(world: World) -> None:
    """At the end."""
    for who, address in world.network.dialled:
        if address[0] == EVIL[0]:
            world.violations.add(CHECK, f"{who} dialled {address}, which only a forgery named")
