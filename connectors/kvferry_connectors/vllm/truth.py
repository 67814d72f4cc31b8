"""What this engine really holds, beside what its record says; for `kvferry audit --live`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from kvferry.core.events import Retained
from kvferry.core.leases import CACHE, HOST
from kvferry.core.messages import HeldLease, HeldPin
from kvferry.ids import SHORT_BYTES
from kvferry.node.export.table import ExportTable
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.exports import Exports

UNKNOWN = -1


class EngineTruth:
    """The export table's, the block pool's and the host tier's word on what the book has recorded.

    Asked on the agent's thread, where the book lives. The engine thread is never waited for: what
    is read of it are single look-ups, and who asks takes a difference for one only if it stays.
    See :class:`kvferry.node.agent.holdings.Truth`.

    Args:
        book: what was recorded.
        table: what peers are granted.
        exports: the engine's side; None before its block pool exists.
    """

    def __init__(self, book: Book, table: ExportTable, exports: Callable[[], Exports | None]):
        self._book = book
        self._table = table
        self._exports = exports

    def held(self, event: Retained) -> int:
        """How many blocks of this offer or lease are really there; -1 where that cannot be told.

        Of an offer from the cache: those that a pin would be granted now. Of a lease: those whose
        reference it has, and that the pool holds under the hashes that were recorded. Of a run in
        the host tier: those that are in its slots.
        """
        if event.tier == CACHE:
            chain = self._book.offered_chain(event.offer, event.rev)
            return UNKNOWN if chain is None else self._table.lent(chain)
        exports = self._exports()
        if exports is None:
            return UNKNOWN
        if event.tier == HOST:
            return self._in_host_tier(exports, event)
        return self._leased(exports, event)

    def pins(self) -> Sequence[HeldPin]:
        """Each pin that stands."""
        return self._table.standing_pins()

    def leases(self) -> Sequence[HeldLease]:
        """Each lease that the engine holds, recorded or not."""
        exports = self._exports()
        return () if exports is None else exports.leasing.standing()

    def _in_host_tier(self, exports: Exports, event: Retained) -> int:
        chain = self._book.hosted_chain(event.offer, event.rev)
        tier = exports.leasing.host
        if chain is None or tier is None:
            return UNKNOWN
        table = tier.table

        def there(chain_hash: bytes) -> bool:
            slot = table.slot(chain_hash)
            return slot is not None and table.present(slot) == chain_hash

        return sum(1 for _ in takewhile(there, chain))

    def _leased(self, exports: Exports, event: Retained) -> int:
        """Up to the first block that is not held, or is not the one that was recorded."""
        recorded = self._recorded(event)
        for place, block in enumerate(blocks := exports.leasing.blocks_of(event.offer)):
            if not block.ref_cnt:
                return place
            present = exports.present_hash(block.block_id) if exports.caching else None
            wanted = recorded.get(place, b"")
            if exports.caching and (present is None or not present.startswith(wanted)):
                return place
        return len(blocks)

    def _recorded(self, event: Retained) -> dict[int, bytes]:
        """The hashes that an event has, by the block's place: short samples, and the last whole."""
        stride = self._book.stride
        short = range(0, len(event.hashes), SHORT_BYTES)
        found = {
            (nth + 1) * stride - 1: event.hashes[at : at + SHORT_BYTES]
            for nth, at in enumerate(short)
        }
        found[event.count - 1] = event.tail
        return found
