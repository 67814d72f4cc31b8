"""Invariant 1: what is used is what the chain hash says, whatever was read from whom and when."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checks.violations import Violations

CHECK = "truth"


def reads_right(
    violations: Violations, who: str, tags: Sequence[bytes], hashes: Sequence[bytes]
) -> None:
    """Called on every use: ``tags[i]`` lies where the KV of ``hashes[i]`` is read now."""
    for at, (tag, chain) in enumerate(zip(tags, hashes, strict=True)):
        if tag != chain:
            violations.add(
                CHECK, f"{who} attends to block {at} of its prompt, where {tag.hex()[:12]} lies"
            )
            return
