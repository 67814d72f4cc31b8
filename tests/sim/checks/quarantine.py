"""Invariant 2: no block is written while somebody else may touch it."""

from __future__ import annotations

from tests.sim.checks.violations import Violations

CHECK = "quarantine"


def computes(violations: Violations, owner: str, block: int, loading: dict[int, str]) -> None:
    """Called when the engine's forward pass writes: no transfer may be writing there."""
    if block in loading:
        violations.add(CHECK, f"{owner} computes into block {block}, which {loading[block]} fills")


def arrives(
    violations: Violations, owner: str, block: int, loading: dict[int, str], transfer: str
) -> None:
    """Called when the data plane writes: the engine must still keep the block for this transfer."""
    holder = loading.get(block)
    if holder != transfer:
        violations.add(
            CHECK,
            f"{transfer} writes into block {block} of {owner}, which is {holder or 'nobody'}'s",
        )
