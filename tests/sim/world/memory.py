"""The KV memory of one engine: what lies in each block, and who may write there."""

from __future__ import annotations

from tests.sim.checks import quarantine
from tests.sim.checks.violations import Violations

NOTHING = b"-"
"""No KV, or that of a block that is not full."""


class Memory:
    """One tag per block: the chain hash of the tokens whose KV lies there.

    Attributes:
        loading: target blocks that a transfer may write to, with its name; kept by the engine
            from the moment that it hands blocks to a load until the load is reported.
    """

    def __init__(self, owner: str, blocks: int, violations: Violations) -> None:
        self.owner = owner
        self.tags = [NOTHING] * blocks
        self.loading: dict[int, str] = {}
        self._violations = violations

    def compute(self, block: int, tag: bytes) -> None:
        """The engine's own forward pass writes."""
        quarantine.computes(self._violations, self.owner, block, self.loading)
        self.tags[block] = tag

    def arrive(self, block: int, tag: bytes, transfer: str) -> None:
        """The data plane writes for a transfer."""
        quarantine.arrives(self._violations, self.owner, block, self.loading, transfer)
        self.tags[block] = tag
