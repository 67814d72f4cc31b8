"""An engine's GPU memory for KV, as vLLM's block pool works.

Blocks that nobody holds stay findable and count as free; the least recently used one is reused
when a new block is needed. A chain is given back from its end, so that its beginning lives longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class BlockPool:
    """Blocks of one engine by numbers that stand for what they hold.

    Args:
        capacity: blocks in all.
        reused: called with each block whose content is lost because its memory is needed.
    """

    def __init__(self, capacity: int, reused: Callable[[int], None]) -> None:
        self.capacity = capacity
        self._reused = reused
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Findable blocks without a holder, least recently used first."""
        self._coming: set[int] = set()
        """Held blocks whose KV is not there yet."""
        self.handed_out = 0
        """Blocks given out for new content since the beginning."""
        self._unnamed = 0
        """Held blocks that nobody can share: a prompt's last one, an answer's."""

    @property
    def free(self) -> int:
        """Blocks that a new request could have, as the engine counts them."""
        return self.capacity - len(self._holders) - self._unnamed

    @property
    def used(self) -> int:
        """Blocks with content: held or findable."""
        return len(self._holders) + self._unnamed + len(self._idle)

    def ready(self, block: int) -> bool:
        """Whether the block's KV is there."""
        return block in self._idle or (block in self._holders and block not in self._coming)

    def known(self, block: int) -> bool:
        """Whether it is there or on the way for a request."""
        return block in self._holders or block in self._idle

    def ready_prefix(self, chain: Sequence[int]) -> int:
        """How many blocks from the chain's beginning are there."""
        return next((at for at, block in enumerate(chain) if not self.ready(block)), len(chain))

    def known_prefix(self, chain: Sequence[int]) -> int:
        """How many are there or on the way for another request."""
        idle, holders = self._idle, self._holders
        for at, block in enumerate(chain):
            if block not in holders and block not in idle:
                return at
        return len(chain)

    def missing(self, chain: Sequence[int], unnamed: int = 0) -> int:
        """Free blocks that a request for ``chain`` and ``unnamed`` more needs."""
        return unnamed + sum(block not in self._holders for block in chain)

    def take(self, chain: Sequence[int], unnamed: int = 0) -> list[int]:
        """Hold a request's blocks; which of them have no KV yet and nobody fills.

        The caller makes sure that :meth:`missing` of them are free; where they are not, there are
        more than fit until some are given back.
        """
        fresh = []
        # All that is there is taken first: making room must not take the chain's own blocks.
        for block in chain:
            if block in self._holders:
                self._holders[block] += 1
            elif block in self._idle:
                del self._idle[block]
                self._holders[block] = 1
            else:
                fresh.append(block)
        self._unnamed += unnamed
        self.handed_out += len(fresh) + unnamed
        for block in fresh:
            self._holders[block] = 1
            self._coming.add(block)
        while self._idle and self.used > self.capacity:
            lost, _ = self._idle.popitem(last=False)
            self._reused(lost)
        return fresh

    def begun(self, chain: Sequence[int]) -> None:
        """The chain is being computed; that alone gives nobody anything."""

    def arrived(self, blocks: Sequence[int]) -> list[int]:
        """The KV of these held blocks is there; which of them were waited for."""
        fresh = [block for block in blocks if block in self._coming]
        self._coming.difference_update(fresh)
        return fresh

    def hold(self, chain: Sequence[int]) -> None:
        """Hold blocks that are there once more: a lease."""
        for block in chain:
            self._idle.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1

    def give_back(self, chain: Sequence[int], unnamed: int = 0) -> None:
        """End one hold of each block; those without another stay findable."""
        self._unnamed -= unnamed
        for block in reversed(chain):
            left = self._holders[block] - 1
            if left:
                self._holders[block] = left
            else:
                del self._holders[block]
                self._idle[block] = None


class BoundlessPool(BlockPool):
    """Never forgets, and has a block as soon as somebody begins to compute it.

    So each block is computed exactly once, and nothing can have more hits.
    """

    def __init__(self) -> None:
        super().__init__(0, _never)
        self._known: set[int] = set()

    @property
    def free(self) -> int:
        return 0

    def ready(self, block: int) -> bool:
        return block in self._known

    def known(self, block: int) -> bool:
        return block in self._known

    def known_prefix(self, chain: Sequence[int]) -> int:
        return self.ready_prefix(chain)

    def missing(self, chain: Sequence[int], unnamed: int = 0) -> int:
        return 0

    def take(self, chain: Sequence[int], unnamed: int = 0) -> list[int]:
        return []

    def begun(self, chain: Sequence[int]) -> None:
        self._known.update(chain)

    def arrived(self, blocks: Sequence[int]) -> list[int]:
        self._known.update(blocks)
        return []

    def hold(self, chain: Sequence[int]) -> None:
        """It forgets nothing in any case."""

    def give_back(self, chain: Sequence[int], unnamed: int = 0) -> None:
        """It forgets nothing in any case."""


def _never(block: int) -> None:
    raise AssertionError(f"block {block} was forgotten")
