"""The source's side on the engine thread: blocks offered from the engine's cache, and leases.

An offer costs the engine nothing: the block pool's soft lease (``unpin_blocks``) leaves a block
counted free and calls us back when it is handed out again. A lease is a reference count taken
with ``touch``; it ends in the scheduler hooks that come before somebody would have to wait.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.node.export.leases import LeaseTable
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.vllm.items import Cleared, Leased, LeaseEnded, Offered, Reused
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import Tracked

GROUP_BYTES = 4
"""The pool's own key is the block hash followed by so many bytes of group id."""


class Exports:
    """What this engine offers. All methods run on the engine thread."""

    def __init__(
        self,
        pool: Any,
        table: ExportTable,
        outbox: Outbox,
        options: Options,
        *,
        incarnation: str,
        caching: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._table = table
        self._outbox = outbox
        self._options = options
        self._incarnation = incarnation
        self._watched: dict[int, bytes] = {}
        self._reused: list[bytes] = []
        self._offers: dict[bytes, str] = {}
        """Tail hash of each chain that is offered whole, to its offer."""
        self._counter = itertools.count(1)
        self._leased: dict[str, list[Any]] = {}
        total = len(pool.blocks)
        self._leases = LeaseTable(int(total * options.lease_budget), clock)
        self._watermark = int(total * options.free_watermark)
        self.paused = False
        """Nothing is offered."""
        self.leasing = True
        """Leases are taken; those that stand drain once they are not."""
        if caching:
            table.check = self._present_hash

    def offer(self, tracked: Tracked, block_ids: list[int], blocks: int) -> tuple[str, int]:
        """Offer the first ``blocks`` blocks of a finished request; returns offer id and length."""
        hashes = tracked.hashes[:blocks]
        if self.paused or not hashes:
            return "", 0
        fresh = self._watch(hashes, block_ids[:blocks])
        self._table.offer(hashes, block_ids[:blocks])
        known = self._offers.get(hashes[-1])
        if known is not None and not fresh and not tracked.offered_early:
            return known, blocks  # Not one block was reused since: the offer still stands.
        offer = f"{self._incarnation}.{next(self._counter)}"
        for chain_hash in hashes[:-1]:
            self._offers.pop(chain_hash, None)  # The ledger ends what this offer covers.
        self._offers[hashes[-1]] = offer
        self._outbox.hand_over(Offered(offer, hashes, tracked.id, tracked.session))
        return offer, blocks

    def offer_written(self, tracked: Tracked, block_ids: list[int], start: int, end: int) -> None:
        """Offer blocks ``start`` to ``end`` of a request that runs; the ledger hears at its end."""
        if self.paused:
            return
        hashes, ids = tracked.hashes[start:end], block_ids[start:end]
        if self._watch(hashes, ids):
            tracked.offered_early = True
        self._table.offer(hashes, ids)

    def lease(self, offer: str, block_ids: list[int], blocks: int) -> bool:
        """Keep an offer's blocks until they are read, expired or needed."""
        ttl_ms = self._options.lease_ms
        lease = f"{offer}L{next(self._counter)}"
        ids = block_ids[:blocks]
        if not self.leasing or not self._outbox.admit() or self._free_is_low():
            return False
        if not self._leases.grant(lease, ids, ttl_ms, float(blocks)):
            return False
        held = [self._pool.blocks[i] for i in ids]
        self._pool.touch(held)
        self._leased[lease] = held
        self._outbox.hand_over(Leased(lease, offer, ttl_ms))
        return True

    def each_step(self, needed: int = 0) -> None:
        """Once a step: tell of reused blocks, end expired leases and those that press.

        ``needed`` blocks are about to be allocated by requests that hold some already.
        """
        if self._reused:
            gone, self._reused = self._reused, []
            self._outbox.hand_over(Reused(gone))
        if self._leased:
            for lease in self._leases.expired():
                self._end_lease(lease, "expired")
            if not self.leasing:
                self.end_leases("paused")
            else:
                self._until_free(lambda: needed)

    def make_room(self, blocks: int) -> bool:
        """End leases, least value first and never while pinned, until ``blocks`` are freed."""
        if blocks <= 0 or not self._leased:
            return False
        ended = False
        for lease in self._leases.victims(blocks, self._table.pinned_blocks()):
            self._end_lease(lease, "pressure")
            ended = True
        return ended

    def room_for(self, blocks: int, local: Sequence[bytes] = (), reserved: int = 0) -> None:
        """A waiting request is about to allocate: leases must not be in its way.

        It needs ``blocks`` in all, of which the chain ``local`` is in the engine's cache, and
        ``reserved`` must stay free for others. Cached blocks that nobody holds count as free,
        and so the request needs them too; a lease that ends can add to these.
        """
        if blocks + reserved + self._watermark > self._pool.get_num_free_blocks():
            self._until_free(lambda: blocks - self._in_use(local) + reserved)

    def end_leases(self, reason: str) -> None:
        """End every lease that is not pinned."""
        for lease in self._leases.victims(len(self._pool.blocks), self._table.pinned_blocks()):
            self._end_lease(lease, reason)

    def clear(self, reason: str) -> None:
        """Withdraw everything: pause, cache reset, new weights, shutdown."""
        for lease in list(self._leased):
            self._end_lease(lease, reason)
        self._table.clear()
        self._watched.clear()
        self._reused.clear()
        self._offers.clear()
        self._outbox.hand_over(Cleared(reason))

    def holds_leases(self) -> bool:
        """Whether ending leases could free blocks."""
        return bool(self._leased)

    def _until_free(self, needed: Callable[[], int]) -> None:
        """End leases until ``needed()`` blocks and the watermark are free, or none can end."""
        while self.make_room(needed() + self._watermark - self._pool.get_num_free_blocks()):
            pass

    def _in_use(self, chain: Sequence[bytes]) -> int:
        """How many of the chain's cached blocks somebody holds."""
        found = (self._pool.get_cached_block(chain_hash, [0]) for chain_hash in chain)
        return sum(blocks is not None and blocks[0].ref_cnt > 0 for blocks in found)

    # --- inner ------------------------------------------------------------------------------

    def _watch(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> bool:
        """Have the pool tell when these blocks are reused; False if it would have told anyway.

        A block may be watched for older content if another user of the pool's one watcher per
        block took ours away; it is watched anew for what it holds now.
        """
        watched = self._watched
        pairs = list(zip(block_ids, hashes, strict=True))
        fresh = [self._pool.blocks[i] for i, h in pairs if watched.get(i) != h]
        if fresh:
            # Their request still holds them: take a second reference and give it back softly,
            # so that the pool tells us of the reuse that follows the request's own free.
            self._pool.touch(fresh)
            self._pool.unpin_blocks(fresh, self._on_reuse)
            watched.update(pairs)
        return bool(fresh)

    def _on_reuse(self, block: Any) -> None:
        block_id = block.block_id
        chain_hash = self._watched.pop(block_id, None)
        if chain_hash is None:
            return
        self._table.reused(block_id)
        self._offers.pop(chain_hash, None)
        self._reused.append(chain_hash)

    def _present_hash(self, block_id: int) -> bytes | None:
        key = self._pool.blocks[block_id].block_hash
        return bytes(key[:-GROUP_BYTES]) if key is not None else None

    def _end_lease(self, lease: str, reason: str) -> None:
        self._leases.end(lease, reason)
        held = self._leased.pop(lease, None)
        if held:
            # The tail first: a shorter prefix is worth more than a hole at its start.
            self._pool.free_blocks(reversed(held))
            self._outbox.hand_over(LeaseEnded(lease, reason))

    def _free_is_low(self) -> bool:
        return bool(self._pool.get_num_free_blocks() < self._watermark)
