"""An engine's host memory for KV, as policies see it, and the plain cache by blocks.

That by chains, for ours, is :class:`kvferry.replay.nodes.host.ChainHost`.
"""

from __future__ import annotations

from collections import OrderedDict
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
