"""The leased chains of a node, and which of them go first."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from kvferry.core.retention_blocks import KeptBlocks
from kvferry.core.retention_gaps import GapModel
from kvferry.core.retention_value import Chain, Memory, Rules, lease_reuse, value

LEASES_MAX = 4_096

Pinned = Callable[[], AbstractSet[int]]
"""The blocks that somebody reads at this moment; asked for only where it matters."""


def no_pins() -> AbstractSet[int]:
    """Nobody reads."""
    return frozenset()


class LeaseSet:
    """Leased chains by key."""

    def __init__(self) -> None:
        self.chains: dict[str, Chain] = {}
        self._kept = KeptBlocks()

    @property
    def blocks(self) -> int:
        """Distinct blocks under lease."""
        return len(self._kept)

    def fresh(self, chain: Chain) -> int:
        """Blocks of the chain that no lease keeps."""
        return self._kept.fresh(chain.blocks)

    def add(self, chain: Chain) -> None:
        """Keep a chain's blocks."""
        self.chains[chain.key] = chain
        self._kept.keep(chain.blocks)

    def remove(self, key: str) -> int:
        """Keep a chain's blocks no longer; returns how many no other lease keeps."""
        chain = self.chains.pop(key, None)
        return 0 if chain is None else self._kept.release(chain.blocks)

    def victims(
        self,
        now_s: float,
        blocks: int,
        memory: Memory,
        gaps: GapModel,
        rules: Rules,
        pinned: Pinned,
        below: float = float("inf"),
        taken: AbstractSet[int] = frozenset(),
    ) -> tuple[list[Chain], int]:
        """Leases to end so that ``blocks`` distinct blocks lose their last one.

        The least valuable first, of equals the one that ends soonest; none that is pinned, none
        worth ``below`` or more, and none that turns out not to be needed. Blocks ``taken`` by
        another lease in their place do not count as freed.

        Returns:
            The leases, and how many blocks they free: fewer than asked for if that is all.
        """
        worth = {
            key: value(chain, lease_reuse(now_s, chain, memory, gaps, rules), rules)
            for key, chain in self.chains.items()
        }
        order = sorted(self.chains.values(), key=lambda one: (worth[one.key], one.until_s))
        held = pinned()
        runs = [
            (one.key, [block for block in one.blocks if block not in taken])
            for one in order
            if worth[one.key] < below and held.isdisjoint(one.blocks)
        ]
        names, freed = self._kept.fewest(runs, blocks, frozenset())
        return [self.chains[name] for name in names], freed

    def way_for(
        self,
        now_s: float,
        chain: Chain,
        memory: Memory,
        gaps: GapModel,
        rules: Rules,
        pinned: Pinned,
        *,
        from_free: bool,
    ) -> list[Chain] | None:
        """Leases that must end so that ``chain`` can be leased; None if it cannot.

        It never takes what running requests need, and displaces only what is worth clearly less.
        """
        fresh = self.fresh(chain)
        if memory.spare < (fresh if from_free else 0):
            return None
        if len(chain.blocks) > memory.budget or len(self.chains) >= LEASES_MAX:
            return None
        over = self.blocks + fresh - memory.budget
        if over <= 0:
            return []
        reuse = lease_reuse(now_s, chain, memory, gaps, rules)
        below = value(chain, reuse, rules) / rules.displace_ratio
        taken = frozenset(chain.blocks)
        less, freed = self.victims(now_s, over, memory, gaps, rules, pinned, below, taken)
        return less if freed >= over else None
