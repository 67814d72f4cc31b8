"""Every checker that runs at the end of a run. Others run on every use, where it happens:
``truth``, ``quarantine``, ``leases`` and ``engine``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.checks import (
    books,
    conservation,
    endings,
    fold,
    leadership,
    leases,
    ledger,
    lives,
    secrecy,
    slots,
)

if TYPE_CHECKING:
    from tests.sim.world.world import World

AT_THE_END = (
    endings.check,
    conservation.check,
    books.check,
    leases.check,
    lives.check,
    secrecy.check,
    leadership.check,
    ledger.check,
    slots.check,
    fold.check,
)


def at_the_end(world: World) -> None:
    """Check what must hold once everything has come to rest."""
    for check in AT_THE_END:
        check(world)
