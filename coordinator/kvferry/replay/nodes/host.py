"""A host tier by chains, as our policy fills it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence


class ChainHost:
    """Chains that somebody else chooses; blocks that several share lie there once.

    Args:
        capacity: blocks; whoever puts chains keeps to it.
        lost: called with each block whose last chain leaves.
    """

    def __init__(self, capacity: int, lost: Callable[[int], None]) -> None:
        self.capacity = capacity
        self._lost = lost
        self._chains: dict[str, Sequence[int]] = {}
        self._uses: Counter[int] = Counter()

    @property
    def used(self) -> int:
        return len(self._uses)

    def has(self, block: int) -> bool:
        return block in self._uses

    def holds(self, key: str) -> bool:
        """Whether a chain of this key is there."""
        return key in self._chains

    def fresh(self, chain: Sequence[int]) -> int:
        """How many of these are not there yet."""
        return sum(block not in self._uses for block in chain)

    def put(self, key: str, chain: Sequence[int]) -> list[int]:
        """Keep a chain; which of its blocks were not there yet."""
        self.drop(key)
        fresh = [block for block in chain if block not in self._uses]
        self._chains[key] = chain
        self._uses.update(chain)
        return fresh

    def drop(self, key: str) -> None:
        """Let go of a chain."""
        for block in self._chains.pop(key, ()):
            self._uses[block] -= 1
            if not self._uses[block]:
                del self._uses[block]
                self._lost(block)

    def touch(self, chain: Sequence[int]) -> None:
        """Nothing: the policy knows when a session was last there."""
