"""An engine's host memory for KV: by blocks for the plain cache, by chains for ours."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol


class Host(Protocol):
    """What the rest of the simulation asks of either."""

    capacity: int

    @property
    def used(self) -> int:
        """Distinct blocks held."""
        ...

    def has(self, block: int) -> bool:
        """Whether the block is there."""
        ...

    def touch(self, chain: Sequence[int]) -> None:
        """These blocks were used."""
        ...


class LruHost:
    """The blocks that were last of use.

    Args:
        capacity: blocks.
        lost: called with each block that gives way.
    """

    def __init__(self, capacity: int, lost: Callable[[int], None]) -> None:
        self.capacity = capacity
        self._lost = lost
        self._blocks: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        return len(self._blocks)

    def has(self, block: int) -> bool:
        return block in self._blocks

    def put(self, block: int) -> None:
        """Keep a block that is not there yet."""
        self._blocks[block] = None
        if len(self._blocks) > self.capacity:
            self._lost(self._blocks.popitem(last=False)[0])

    def touch(self, chain: Sequence[int]) -> None:
        # From the end, so that a chain's beginning stays longest.
        for block in reversed(chain):
            if block in self._blocks:
                self._blocks.move_to_end(block)


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
