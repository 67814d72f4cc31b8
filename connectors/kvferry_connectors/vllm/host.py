"""The host tier as the scheduler side keeps it: what is copied there, offered and given up.

A copy holds no block of the engine: like a peer's read it is optimistic, and what was reused before
every rank had said that its copy was complete is not kept. So nothing waits for a copy, neither a
request for blocks nor a reset of the cache.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from kvferry.node.export.host import HostTable
from kvferry.node.export.host_copies import WAITING_MAX, Pace, Piece, ToHost
from kvferry.node.export.host_runs import Taken
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.vllm.items import HostEvicted, HostOffered
from kvferry_connectors.vllm.metadata import CopyOrder, RankCopied

log = logging.getLogger("kvferry.vllm")

RUN = "H"
"""Between a chain's key and the number of its run; together they are the ledger's name for it."""
PIECE_BYTES = 32 * 1024 * 1024
"""About so much is copied by one order: there is one at a time, and the next comes a step or two
after its report."""
PIECE_BLOCKS_MAX = 32
"""An order and its report cost the engine thread about a microsecond for each of its blocks."""


class HostTier:
    """The host tier of one engine. All methods run on the engine thread, but :meth:`present`.

    Attributes:
        on_moved: called with the key of each chain whose copy ended, and whether it is whole.
        on_lost: called with the key of each chain that had to give way, at least in part.
    """

    def __init__(
        self,
        present: Callable[[int], bytes | None],
        exports: ExportTable,
        outbox: Outbox,
        *,
        slots: int,
        ranks: int,
        engine_blocks: int,
        block_bytes: int,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``present`` tells the engine's present hash of a block; ``block_bytes`` is a rank's."""
        self.table = HostTable(slots)
        self.on_moved: Callable[[str, bool], None] = lambda key, whole: None
        self.on_lost: Callable[[str], object] = lambda key: None
        self._present = present
        self._exports = exports
        self._outbox = outbox
        self._ranks = ranks
        self._first = engine_blocks
        self._block_bytes = block_bytes
        self._piece_blocks = max(1, min(PIECE_BLOCKS_MAX, PIECE_BYTES // block_bytes))
        self._pace = Pace(bytes_per_s)
        self._clock = clock
        self._waiting: deque[ToHost] = deque()
        self._chain: ToHost | None = None
        """The one that is being copied."""
        self._run = ""
        """Its run: a chain that is copied again, for a part of it was lost, gets a new one."""
        self._runs: dict[str, str] = {}
        """Chain to its last run."""
        self._piece: Piece | None = None
        self._ending: dict[str, str] = {}
        """Chains to end once nobody reads them, with the reason."""
        self._orders, self._counter = itertools.count(1), itertools.count(1)
        exports.set_host(engine_blocks)

    # --- copying ----------------------------------------------------------------------------

    def copy(self, chain: ToHost) -> None:
        """Copy a chain of the engine as soon as others are done."""
        if len(self._waiting) >= WAITING_MAX:
            self.on_moved(chain.key, False)
        else:
            self._waiting.append(chain)

    def each_step(self) -> CopyOrder | None:
        """Once a step: what every rank is to copy now, if anything."""
        for key in list(self._ending):
            self._try_end(key)
        if self._piece is not None or not (self._chain or self._waiting):
            return None
        now_s = self._clock()
        if not self._pace.ready(now_s):
            return None
        if self._chain is None:
            self._chain = self._waiting.popleft()
            self._run = f"{self._chain.key}{RUN}{next(self._counter)}"
            self._runs[self._chain.key] = self._run
            self.table.begin(self._run, self._chain.session, now_s)
        return self._advance(self._chain, now_s)

    def copied(self, report: RankCopied) -> None:
        """A rank has carried out the order."""
        piece = self._piece
        assert piece is not None
        piece.answers += 1
        piece.ok = piece.ok and report.ok
        if piece.answers < self._ranks:
            return
        self._piece = None
        chain = self._chain
        kept = 0
        if chain is not None and piece.ok:
            kept = self._fill(piece)
        self.table.give_back(piece.slots[kept:])
        if chain is None:
            return  # Everything was cleared meanwhile.
        self.table.grow(self._run, piece.hashes[:kept])
        chain.at += kept
        if chain.whole or kept < len(piece.slots):
            self._settle(chain)

    def reused(self, block: int) -> None:
        """The engine hands a block of its own out again."""
        if self._piece is not None:
            self._piece.reused(block)

    # --- loads of our own -------------------------------------------------------------------

    def hold(self, hashes: Sequence[bytes]) -> tuple[int, ...]:
        """The slots of a chain's blocks up to the first that is not there; they stay meanwhile."""
        slots: list[int] = []
        for chain_hash in hashes:
            slot = self.table.slot(chain_hash)
            if slot is None:
                break
            slots.append(slot)
        self.table.hold(slots)
        return tuple(slots)

    def release(self, slots: Sequence[int], damaged: Sequence[bytes] = ()) -> None:
        """A load has ended; ``damaged`` blocks were not what they had been."""
        self.table.release(slots)
        if damaged:
            self._stop_copying()
            self._gone(self.table.discard(damaged), "damaged")

    # --- ending -----------------------------------------------------------------------------

    def present(self, block: int) -> bytes | None:
        """The chain hash of what is in a slot, by the node's number of it. Any thread."""
        return self.table.present(block - self._first)

    def end(self, key: str, reason: str) -> None:
        """Keep a chain no longer; what a peer reads goes once it has been read."""
        self._ending[key] = reason
        self._try_end(key)

    def clear(self, reason: str) -> None:
        """Give everything up."""
        self._stop_copying()
        while self._waiting:
            self.on_moved(self._waiting.popleft().key, False)
        self._ending.clear()
        self._gone(self.table.clear(), reason)

    # --- inner ------------------------------------------------------------------------------

    def _advance(self, chain: ToHost, now_s: float) -> CopyOrder | None:
        """The next piece of a chain, behind what is there already; or it is done with."""
        stop = min(chain.at + self._piece_blocks, len(chain.blocks))
        there = self.table.reach(chain.hashes, chain.at, stop)
        self.table.grow(self._run, chain.hashes[chain.at : chain.at + there])
        chain.at += there
        hashes: list[bytes] = []
        slot, present = self.table.slot, self._present
        for at in range(chain.at, stop):
            chain_hash = chain.hashes[at]
            if slot(chain_hash) is not None or present(chain.blocks[at]) != chain_hash:
                break
            hashes.append(chain_hash)
        if not hashes:
            if chain.at < stop or chain.whole:
                self._settle(chain)  # The engine has reused the next block, or all is there.
            return None
        taken = self.table.take(len(hashes), now_s, self._pinned_slots, sparing=self._run)
        self._gone(taken, "pressure")
        count = len(taken.slots)
        if not count:
            self._settle(chain)
            return None
        blocks = list(chain.blocks[chain.at : chain.at + count])
        self._piece = Piece(hashes[:count], blocks, taken.slots)
        self._pace.passed(count * self._block_bytes, now_s)
        return CopyOrder(next(self._orders), tuple(blocks), tuple(taken.slots))

    def _fill(self, piece: Piece) -> int:
        """Take in what was copied, up to the first block that was reused; how many that are."""
        kept = min(piece.void, default=len(piece.blocks))
        present = self._present
        for nth, block in enumerate(piece.blocks[:kept]):
            if present(block) != piece.hashes[nth]:
                kept = nth
                break
        self.table.fill(piece.slots[:kept], piece.hashes[:kept])
        self._exports.offer_host(piece.hashes[:kept], [self._first + s for s in piece.slots[:kept]])
        return kept

    def _settle(self, chain: ToHost) -> None:
        """Nothing more of this chain is copied."""
        self._chain = None
        run, over = self.table.settle(self._run)
        self._forget(over)
        if run is not None:
            named = chain.request, chain.session, chain.tenant
            self._outbox.hand_over(HostOffered(run.id, list(run.hashes), *named))
        self.on_moved(chain.key, chain.whole)

    def _stop_copying(self) -> None:
        """Leave the chain at what is there; a piece under way is not taken in."""
        if self._chain is not None:
            self._settle(self._chain)

    def _try_end(self, key: str) -> None:
        run = self._runs.get(key, "")
        slots = self.table.slots_of(run)
        if slots and not self._pinned_slots().isdisjoint(slots):
            return
        reason = self._ending.pop(key)
        if self._chain is not None and self._chain.key == key:
            self._stop_copying()
        self._runs.pop(key, None)
        self._gone(self.table.end(run), reason)

    def _gone(self, taken: Taken, reason: str) -> None:
        """Tell peers and the ledger of what the tier does not have any more."""
        for slot in taken.freed:
            self._exports.reused(self._first + slot)
        if taken.lost:
            self._outbox.hand_over(HostEvicted(taken.lost, reason))
        self._forget(taken.runs)

    def _forget(self, runs: Iterable[str]) -> None:
        """These are not whole any more, or part of longer ones."""
        for run in runs:
            key = run.rpartition(RUN)[0]
            if self._runs.get(key) == run:
                del self._runs[key]
                self.on_lost(key)

    def _pinned_slots(self) -> AbstractSet[int]:
        first = self._first
        return {block - first for block in self._exports.pinned_blocks() if block >= first}
