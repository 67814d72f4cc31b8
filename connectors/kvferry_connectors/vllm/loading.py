"""Which blocks are being loaded, and for whom: who needs the same ones waits for that load."""

from __future__ import annotations

import time

from kvferry.core.events import TransferFailed, Transferred
from kvferry_connectors.vllm.tracked import Pull, Tracked

FAILURES_MAX = 64
"""Failed loads that are remembered for the requests that waited for them."""


class Loads:
    """The loads of one engine by their first block. Engine thread only."""

    def __init__(self) -> None:
        self._owner: dict[bytes, str] = {}
        self._open: dict[str, Tracked] = {}
        self._failed: dict[bytes, tuple[str, float]] = {}
        """First block of a failed load, to its source's incarnation and when it failed."""

    def __len__(self) -> int:
        """Loads that have no outcome yet."""
        return len(self._open)

    def begin(self, tracked: Tracked, pull: Pull) -> None:
        """The request's load fills its blocks from ``start_block`` on."""
        self._owner[tracked.hashes[tracked.start_block]] = tracked.id
        self._open[pull.transfer] = tracked

    def others(self, tracked: Tracked, block: bytes) -> bool:
        """Whether another request loads this very block."""
        owner = self._owner.get(block)
        return owner is not None and owner != tracked.id

    def in_vain(self, pull: Pull, block: bytes) -> bool:
        """Whether this pull waited for a load from its own source that failed: it would fail too,
        and each that waits would find out after the other, at a deadline each."""
        source, failed_at = self._failed.get(block, ("", 0.0))
        return source == pull.incarnation and failed_at > pull.started

    def by_transfer(self, transfer: str) -> Tracked | None:
        """The request that owns an open load."""
        return self._open.get(transfer)

    def end(self, tracked: Tracked, pull: Pull, outcome: Transferred | TransferFailed) -> None:
        """The load has its outcome: who waited for it may go on."""
        self._open.pop(pull.transfer, None)
        first = tracked.hashes[tracked.start_block]
        if self._owner.get(first) == tracked.id:
            del self._owner[first]
        # An abort says nothing of the source: the next one that wants the blocks may load them.
        if isinstance(outcome, TransferFailed) and outcome.reason not in ("aborted", "unused"):
            self._failed.pop(first, None)
            self._failed[first] = pull.incarnation, time.monotonic()
            if len(self._failed) > FAILURES_MAX:
                del self._failed[next(iter(self._failed))]
