"""Invariant 2 for leases: none ends while somebody reads its blocks, unless all are given up."""

from __future__ import annotations

import time
from typing import Any

from tests.sim.checks.violations import Violations

CHECK = "leases"


def watch(who: str, leasing: Any, violations: Violations) -> None:
    """Look at every end of a lease of this engine from now on."""
    end, clear = leasing._end, leasing.clear
    giving_up: list[str] = []

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

    leasing._end, leasing.clear = watched_end, watched_clear


def _free(who: str, lease: str, blocks: set[int], leasing: Any, violations: Violations) -> None:
    for pin in leasing._table._desk._book.open.values():
        # Whoever pins at this very moment may come just after the engine has looked.
        since = pin.opened_s < time.monotonic()
        if since and not blocks.isdisjoint(pin.held.values()):
            violations.add(CHECK, f"{who} ends lease {lease} while {pin.key[1]} pins its blocks")
