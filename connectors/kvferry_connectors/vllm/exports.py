"""The source's side on the engine thread: blocks offered from the engine's cache, and leases.

An offer costs the engine nothing: the block pool's soft lease (``unpin_blocks``) leaves a block
counted free and calls us back when it is handed out again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.vllm.host import HostTier
from kvferry_connectors.vllm.items import Cleared, Offered, Reused
from kvferry_connectors.vllm.leasing import Leasing
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import Tracked

GROUP_BYTES = 4
"""The pool's own key is the block hash followed by so many bytes of group id."""


class Exports:
    """What this engine offers. All methods run on the engine thread.

    Attributes:
        leasing: which of the offered chains are leased.
        paused: nothing is offered.
        caching: the engine keeps the hashes of its blocks.
    """

    def __init__(
        self,
        pool: Any,
        table: ExportTable,
        outbox: Outbox,
        options: Options,
        *,
        incarnation: str,
        caching: bool,
        block_tokens: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._table = table
        self._outbox = outbox
        self._incarnation = incarnation
        self._watched: dict[int, bytes] = {}
        self._holders: dict[bytes, int] = {}
        """How many watched blocks hold a hash: several where requests computed the same side by
        side, and it is lost with the last of them."""
        self._held_since: dict[bytes, int] = {}
        """Number of the last offer that had begun when a hash was first held: it, and those
        before it, lost the hash if they had it."""
        self._reused: list[bytes] = []
        self._offers: dict[bytes, str] = {}
        """Tail hash of each chain that is offered whole, to its offer."""
        self._covers: dict[str, tuple[str, ...]] = {}
        """Offers that an offer covers, until its chain is left to the leases."""
        self._begun = 0
        """Offers so far; each has its number at the end of its name."""
        self.leasing = Leasing(
            pool,
            table,
            outbox,
            options,
            offers=self._offers,
            stands=self._stands,
            block_tokens=block_tokens,
            clock=clock,
        )
        self.paused = False
        self._host: HostTier | None = None
        self.caching = caching
        if caching:
            table.check = self.present_hash

    def offer(
        self, tracked: Tracked, block_ids: list[int], blocks: int, *, awaited: bool = False
    ) -> tuple[str, int]:
        """Offer the first ``blocks`` blocks of a finished request, and lease them if that is due.

        Args:
            awaited: another engine is about to read them.

        Returns:
            The offer's id and length in blocks.
        """
        hashes = tracked.hashes[:blocks]
        if self.paused or not hashes:
            return "", 0
        ids = block_ids[:blocks]
        fresh = self._watch(hashes, ids)
        self._table.offer(hashes, ids)
        known = self._offers.get(hashes[-1])
        changed = fresh or tracked.offered_early
        if known is not None and not changed and self._stands(known, ids, hashes):
            offer = known  # Not one block was reused since.
        else:
            offer = self._begin(tracked, hashes)
        covers = self._covers.pop(offer, ())
        self.leasing.offered(offer, tracked, ids, covers, awaited=awaited)
        return offer, blocks

    def offer_written(self, tracked: Tracked, block_ids: list[int], start: int, end: int) -> None:
        """Offer blocks ``start`` to ``end`` of a request that runs; the ledger hears at its end."""
        if self.paused:
            return
        hashes, ids = tracked.hashes[start:end], block_ids[start:end]
        if self._watch(hashes, ids):
            tracked.offered_early = True
        self._table.offer(hashes, ids)

    def offer_pulled(self, tracked: Tracked, block_ids: Sequence[int], blocks: int) -> None:
        """Offer what a request that runs has pulled: in a burst others want the same, and need
        not wait for the one node that had it first. Its end says what becomes of it."""
        hashes = tracked.hashes[:blocks]
        if self.paused or not hashes or hashes[-1] in self._offers:
            return
        self._watch(hashes, block_ids[:blocks])
        self._table.offer(hashes, block_ids[:blocks])
        self._begin(tracked, hashes)

    @property
    def engine_blocks(self) -> int:
        """Blocks of the engine's pool."""
        return len(self._pool.blocks)

    def host_tier(self, tier: HostTier) -> None:
        """There is a host tier: chains that the cache is about to lose may go there."""
        self._host = self.leasing.host = tier
        tier.on_moved = self.leasing.moved
        tier.on_lost = self.leasing.retention.host.drop

    def each_step(self, needed: int = 0, tokens: int = 0, filled: int = 0) -> None:
        """Once a step: tell of reused blocks, and see to the leases.

        ``needed`` blocks are about to be allocated by requests that hold some already; the step
        computes ``tokens``, and loads begin to fill ``filled`` blocks.
        """
        self._tell_reused()
        self.leasing.each_step(needed, tokens, filled)

    def room_for(self, blocks: int, local: Sequence[bytes] = (), reserved: int = 0) -> None:
        """A waiting request is about to allocate: leases must not be in its way.

        It needs ``blocks`` in all, of which the chain ``local`` is in the engine's cache, and
        ``reserved`` must stay free for others. Cached blocks that nobody holds count as free,
        and so the request needs them too; a lease that ends can add to these.
        """
        if self.leasing.crowded(blocks + reserved):
            self.leasing.until_free(lambda: blocks - self._in_use(local) + reserved)

    def clear(self, reason: str) -> None:
        """Withdraw everything: pause, cache reset, new weights, shutdown."""
        self.leasing.clear(reason)
        self._table.clear()
        self._watched.clear()
        self._holders.clear()
        self._held_since.clear()
        self._reused.clear()
        self._offers.clear()
        self._covers.clear()
        if self._host is not None:
            self._host.clear(reason)
        self._outbox.hand_over(Cleared(reason))

    def _in_use(self, chain: Sequence[bytes]) -> int:
        """How many of the chain's cached blocks somebody holds."""
        found = (self._pool.get_cached_block(chain_hash, [0]) for chain_hash in chain)
        return sum(blocks is not None and blocks[0].ref_cnt > 0 for blocks in found)

    # --- inner ------------------------------------------------------------------------------

    def _begin(self, tracked: Tracked, hashes: list[bytes]) -> str:
        """A new offer of a whole chain; the ledger hears of it, and ends those that it covers."""
        self._tell_reused()  # What was lost before it began is no loss of its own.
        self._begun += 1
        offer = f"{self._incarnation}.{self._begun}"
        covered = [old for h in hashes if (old := self._offers.pop(h, None)) is not None]
        self._covers[offer] = tuple(
            name for old in covered for name in (*self._covers.pop(old, ()), old)
        )
        self._offers[hashes[-1]] = offer
        self._outbox.hand_over(Offered(offer, hashes, tracked.id, tracked.session, tracked.tenant))
        return offer

    def _tell_reused(self) -> None:
        if self._reused:
            gone, self._reused = self._reused, []
            self._outbox.hand_over(Reused(gone))

    def _stands(self, offer: str, block_ids: Sequence[int], hashes: Sequence[bytes]) -> bool:
        """Whether the ledger still has an offer as a whole, and these blocks are what it offers.

        A hash that was lost and came back, in whatever block, is not what was offered.
        """
        number = int(offer.rpartition(".")[2])
        watched, since = self._watched, self._held_since
        return all(
            watched.get(i) == h and since[h] < number
            for i, h in zip(block_ids, hashes, strict=False)
        )

    def _watch(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> bool:
        """Have the pool tell when these blocks are reused; False if it would have told anyway.

        A block may be watched for older content if another user of the pool's one watcher per
        block took ours away; it is watched anew for what it holds now.
        """
        watched = self._watched
        pairs = [(i, h) for i, h in zip(block_ids, hashes, strict=True) if watched.get(i) != h]
        fresh = [self._pool.blocks[i] for i, _ in pairs]
        if fresh:
            # Their request still holds them: take a second reference and give it back softly,
            # so that the pool tells us of the reuse that follows the request's own free.
            self._pool.touch(fresh)
            self._pool.unpin_blocks(fresh, self._on_reuse)
            for block_id, chain_hash in pairs:
                if block_id in watched:
                    self._lost(watched[block_id])
                watched[block_id] = chain_hash
                held = self._holders.get(chain_hash, 0)
                if not held:
                    self._held_since[chain_hash] = self._begun
                self._holders[chain_hash] = held + 1
        return bool(fresh)

    def _on_reuse(self, block: Any) -> None:
        block_id = block.block_id
        chain_hash = self._watched.pop(block_id, None)
        if chain_hash is None:
            return
        self._table.reused(block_id)
        if self._host is not None:
            self._host.reused(block_id)
        if not self._lost(chain_hash):
            return
        offer = self._offers.pop(chain_hash, None)
        if offer is not None:
            self._covers.pop(offer, None)
        self._reused.append(chain_hash)

    def _lost(self, chain_hash: bytes) -> bool:
        """A block holds the hash no longer; True if no other does."""
        left = self._holders[chain_hash] - 1
        if left:
            self._holders[chain_hash] = left
        else:
            del self._holders[chain_hash], self._held_since[chain_hash]
        return not left

    def present_hash(self, block_id: int) -> bytes | None:
        """The chain hash of a block, or of a slot of the host tier, as it is now. Any thread."""
        if block_id >= len(self._pool.blocks):
            return self._host.present(block_id) if self._host is not None else None
        key = self._pool.blocks[block_id].block_hash
        return bytes(key[:-GROUP_BYTES]) if key is not None else None
