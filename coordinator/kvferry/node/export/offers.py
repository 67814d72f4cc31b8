"""What a node offers: chain hash to block, and when each block last changed.

A node counts its engine's blocks from 0 and the slots of its host tier on from there. A chain
hash may be offered from both; then the engine's block is the one that is granted. An engine may
have a hash in several blocks, twins, where requests computed the same side by side: one of them is
granted, and another in its place once that was reused.

:meth:`Offers.reused` is called by the engine's scheduler for every block that it hands out, so
it only appends to a queue. Every other method first takes in what is queued, hence sees every
reuse that happened before it. All but ``reused`` need the export table's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

QUEUED_MAX = 4096
"""Reuses that wait to be taken in before :meth:`Offers.reused` says so."""


class Offers:
    """The map of offered blocks, and a count of changes that orders reuses and pins.

    A change is a reuse, or an offer of a block under another hash than before.
    """

    def __init__(self, *, gone_max: int) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._twins_of: dict[bytes, list[int]] = {}
        """Further blocks of the engine that hold a hash, the oldest first; few hashes have any."""
        self._host_block_of: dict[bytes, int] = {}
        self._queued: deque[int] = deque()
        self._changes = 0
        self._changed_at: dict[int, int] = {}
        self._cleared_at = 0
        self._watched = False
        self._gone: deque[bytes] = deque(maxlen=gone_max)
        self.gone_lost = 0

    def __len__(self) -> int:
        self.settle()
        return len(self._block_of)

    def reused(self, block: int) -> bool:
        """Queue a reuse; True when it is time that somebody settles. Needs no lock."""
        self._queued.append(block)
        return len(self._queued) > QUEUED_MAX

    def settle(self) -> None:
        """Take in every queued reuse."""
        queued = self._queued
        # Only holders of the lock take from the queue, so it cannot run empty in between.
        while queued:
            self._change(queued.popleft())

    def offer(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Block ``blocks[i]`` holds the KV of ``hashes[i]``.

        A hash that another block offers is granted from that one as long as it stands; a block
        known under another hash has changed.

        Raises:
            ValueError: the two are not equally long.
        """
        self.settle()
        for chain, block in zip(hashes, blocks, strict=True):
            known = self._hash_of.get(block)
            if known == chain:
                continue
            if known is not None:
                self._change(block)
            if self._block_of.setdefault(chain, block) != block:
                self._twins_of.setdefault(chain, []).append(block)
            self._hash_of[block] = chain

    def prefer(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Grant these of all twins: they stay, while others may be reused."""
        self.settle()
        for chain in self._twins_of.keys() & set(hashes) if self._twins_of else ():
            block, twins = blocks[hashes.index(chain)], self._twins_of[chain]
            if block in twins:
                twins[twins.index(block)] = self._block_of[chain]
                self._block_of[chain] = block

    def offer_host(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Slot ``blocks[i]`` of the host tier holds the KV of ``hashes[i]``, as nobody else's does.

        Raises:
            ValueError: the two are not equally long.
        """
        self.settle()
        for chain, block in zip(hashes, blocks, strict=True):
            self._host_block_of[chain] = block
            self._hash_of[block] = chain

    def withdraw(self, hashes: Sequence[bytes]) -> None:
        """Offer these no longer. Their blocks did not change: pins on them stand."""
        self.settle()
        for chain in hashes:
            block = self._block_of.pop(chain, None)
            if block is not None:
                for one in (block, *self._twins_of.pop(chain, ())):
                    del self._hash_of[one]

    def clear(self) -> None:
        """Everything changed."""
        self.settle()
        for chain in self._block_of:
            self._lose(chain)
        self._block_of.clear()
        self._twins_of.clear()
        self._host_block_of.clear()
        self._hash_of.clear()
        self._changed_at.clear()
        self._changes += 1
        self._cleared_at = self._changes

    def held(self, hashes: Sequence[bytes]) -> int:
        """How many blocks the longest offered prefix has."""
        self.settle()
        count = 0
        for chain in hashes:
            if chain not in self._block_of and chain not in self._host_block_of:
                break
            count += 1
        return count

    def find(self, chain: bytes, check: Check | None, *, host: bool = False) -> int | None:
        """The block that is offered under this hash, if ``check`` agrees; with ``host`` also one
        of the host tier.

        Whoever grants it must have settled and marked before.
        """
        while (known := self._block_of.get(chain)) is not None:
            if self._checked(known, chain, check) is not None:
                return known
        return self._checked(self._host_block_of.get(chain), chain, check) if host else None

    def watch(self, watched: bool) -> None:
        """Pins stand (or none do): remember (or forget) when each block changed."""
        self._watched = watched
        if not watched:
            self._changed_at.clear()

    def settled_mark(self) -> int:
        """The count of changes, after every reuse so far was taken in."""
        self.settle()
        return self._changes

    def unchanged_since(self, mark: int, blocks: Iterable[int]) -> bool:
        """Did none of the blocks change since :meth:`settled_mark` gave ``mark``?

        Only for marks taken since pins are watched.
        """
        self.settle()
        if self._changes == mark:
            return True
        if self._cleared_at > mark:
            return False
        changed_at = self._changed_at
        return not any(changed_at.get(block, 0) > mark for block in blocks)

    def take_gone(self) -> list[bytes]:
        self.settle()
        gone = list(self._gone)
        self._gone.clear()
        return gone

    def _checked(self, block: int | None, chain: bytes, check: Check | None) -> int | None:
        if block is not None and check is not None and check(block) != chain:
            # The engine changed the block and did not say so.
            self._change(block)
            return None
        return block

    def _change(self, block: int) -> None:
        self._changes += 1
        if self._watched:
            self._changed_at[block] = self._changes
        chain = self._hash_of.pop(block, None)
        if chain is None:
            return
        if self._host_block_of.get(chain) == block:
            del self._host_block_of[chain]
        elif chain in self._twins_of:
            self._untwin(chain, block)
        else:
            del self._block_of[chain]
            self._lose(chain)

    def _untwin(self, chain: bytes, block: int) -> None:
        """One of a hash's twins holds it no longer: another is granted in its place."""
        twins = self._twins_of[chain]
        if self._block_of[chain] == block:
            self._block_of[chain] = twins.pop()
        else:
            twins.remove(block)
        if not twins:
            del self._twins_of[chain]

    def _lose(self, chain: bytes) -> None:
        if len(self._gone) == self._gone.maxlen:
            self.gone_lost += 1
        self._gone.append(chain)


Check = Callable[[int], bytes | None]
"""The engine's present hash of a block; None if it has none."""
