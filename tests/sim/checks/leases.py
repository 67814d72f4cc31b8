"""Invariant 2 for leases: none ends while somebody reads its blocks, unless all are given up. And
the ledger knows each that begins: a lease under an offer that had ended would have no record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.sim.checks.violations import Violations

from kvferry.core.events import Retained
from kvferry.core.leases import HBM

if TYPE_CHECKING:
    from tests.sim.world.world import World

CHECK = "leases"


def watch(who: str, leasing: Any, violations: Violations) -> list[str]:
    """Look at every end of a lease of this engine from now on; returns those that begin."""
    begin, end, clear = leasing._begin, leasing._end, leasing.clear
    giving_up: list[str] = []
    begun: list[str] = []

    def watched_begin(action: Any) -> None:
        begin(action)
        if action.chain in leasing._leases:
            begun.append(leasing._leases[action.chain][0])

    def watched_end(key: str, reason: str) -> None:
        lease, held = leasing._leases.get(key, ("", []))
        if not giving_up:
            # A longer lease may go on holding what a shorter one gives up.
            freed = {block.block_id for block in held if block.ref_cnt == 1}
            _free(who, lease, freed, leasing, violations)
        end(key, reason)

    def watched_clear(reason: str) -> None:
        giving_up.append(reason)
        clear(reason)
        giving_up.pop()

    leasing._begin, leasing._end, leasing.clear = watched_begin, watched_end, watched_clear
    return begun


def check(world: World) -> None:
    """At the end: what the nodes that are there leased, they told."""
    told = {
        (life, event.offer)
        for _, life, event in world.facts
        if isinstance(event, Retained) and event.tier == HBM
    }
    for node in world.nodes.values():
        for lease in node.leased:
            if (node.life, lease) not in told:
                world.violations.add(CHECK, f"nobody was told of lease {lease} of {node.name}")


def _free(who: str, lease: str, blocks: set[int], leasing: Any, violations: Violations) -> None:
    for pin in leasing._table._desk._book.open.values():
        # Whoever pins at this very moment may come just after the engine has looked.
        since = pin.opened_s < time.monotonic()
        if since and not blocks.isdisjoint(pin.held.values()):
            violations.add(CHECK, f"{who} ends lease {lease} while {pin.key[1]} pins its blocks")
