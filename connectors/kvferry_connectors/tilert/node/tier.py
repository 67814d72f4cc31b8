"""What the node keeps: chains in the slots of its host tier, leased until something gives way.

The table and the order in which chains give way are those of vLLM's host tier
(:mod:`kvferry.node.export.host`); so are the pins on them. All methods run on the keeper's thread,
but those that say otherwise.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from kvferry.core.retention_actions import POLICY, PRESSURE, SESSION_END
from kvferry.node.export.host import HostTable
from kvferry.node.export.host_runs import HostRun, Taken, retained_last
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.tilert.origin import OriginRefused
from kvferry_connectors.vllm.items import HostEvicted, HostOffered

FIRST = 1
"""Number of the first slot; the node has no engine blocks, and no slot may be number 0."""
SESSIONS_MAX = 4096
"""Sessions whose last chain is remembered; of others a chain ends under pressure only."""


class Draft:
    """A chain that is being written.

    Attributes:
        have: blocks from the first on that were there already.
        slots: of those behind them, in order.
    """

    __slots__ = ("hashes", "have", "run", "slots")

    def __init__(self, run: str) -> None:
        self.run = run
        self.hashes: list[bytes] = []
        self.have = 0
        self.slots: list[int] = []


class Tier:
    """Chains from their first block on."""

    def __init__(
        self,
        exports: ExportTable,
        outbox: Outbox,
        incarnation: str,
        slots: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = HostTable(slots, self._order)
        self._exports = exports
        self._outbox = outbox
        self._incarnation = incarnation
        self._clock = clock
        self._counter = itertools.count(1)
        self._runs: dict[tuple[str, bytes], str] = {}
        """The last run of each session; of which tenant's, its first block's hash tells."""
        self._drafts: set[str] = set()
        """Runs that are being written: they do not give way."""

    def present(self, block: int) -> bytes | None:
        """The chain hash of a block by the node's number of it. Any thread."""
        return self._table.present(block - FIRST)

    def held(self, chain: Sequence[bytes]) -> int:
        """How many blocks of a chain are in slots, from the first on. Any thread."""
        for count, chain_hash in enumerate(chain):
            slot = self._table.slot(chain_hash)
            if slot is None or self._table.present(slot) != chain_hash:
                return count
        return len(chain)

    @property
    def over(self) -> bool:
        """Whether more is in use than may be. Any thread."""
        return self._table.used > self._table.budget

    def allow(self, share: float) -> None:
        """So much of the tier may be in use from now on; what is over gives way, as it does under
        pressure, and what is being read with the next :meth:`fit` after that."""
        self._table.budget = int(self._table.slots * share)
        self.fit()

    def fit(self) -> None:
        """Let go of what is over, if anything is."""
        if self.over:
            self._gone(self._table.fit(self._clock(), self._pinned), POLICY)

    def begin(self, hashes: Sequence[bytes], session: str) -> Draft:
        """Take slots for a prompt's full blocks.

        Raises:
            OriginRefused: ``no_room``.
        """
        if len(hashes) >= self._table.budget:  # At least one more follows, or nothing is kept.
            raise self._too_long(len(hashes) + 1)
        now_s = self._clock()
        for tail, _ in self._exports.take_reads():
            self._table.use(tail, now_s)
        draft = Draft(f"{self._incarnation}.{next(self._counter)}")
        self._table.begin(draft.run, session, now_s)
        self._drafts.add(draft.run)
        try:
            self._add(draft, hashes)
        except OriginRefused:
            self.drop(draft)
            raise
        return draft

    def extend(self, draft: Draft, hashes: Sequence[bytes]) -> list[int]:
        """Take slots for what was generated; those of the new blocks, in order.

        Raises:
            OriginRefused: ``no_room``; the draft is still to be dropped.
        """
        before = len(draft.slots)
        self._add(draft, hashes)
        return draft.slots[before:]

    def commit(self, draft: Draft, request: str, session: str, *, retain_s: float = 0.0) -> None:
        """Everything is written: offer it, and for ``retain_s`` let others give way first."""
        self._drafts.discard(draft.run)
        fresh = draft.hashes[draft.have :]
        self._table.fill(draft.slots, fresh)
        self._table.grow(draft.run, fresh)
        self._exports.offer_host(fresh, [FIRST + slot for slot in draft.slots])
        run, _ = self._table.settle(draft.run)
        assert run is not None
        run.retain_until_s = max(run.retain_until_s, self._clock() + retain_s if retain_s else 0.0)
        if session:
            self._runs.pop(self._scope(draft, session), None)
            self._runs[self._scope(draft, session)] = draft.run
            if len(self._runs) > SESSIONS_MAX:
                del self._runs[next(iter(self._runs))]
        self._outbox.hand_over(HostOffered(draft.run, list(draft.hashes), request, session))

    def drop(self, draft: Draft) -> None:
        """Nothing of it is kept, but what other chains have."""
        self._drafts.discard(draft.run)
        self._table.give_back(draft.slots)
        draft.slots = []
        self._gone(self._table.end(draft.run), "cleared")

    def end_session(self, session: str, first: bytes) -> None:
        """No turn follows: what was kept for it goes, unless somebody reads it now."""
        run = self._runs.pop((session, first), "")
        if self._pinned().isdisjoint(self._table.slots_of(run)):
            self._gone(self._table.end(run), SESSION_END)

    def clear(self, reason: str) -> None:
        """Everything goes."""
        self._runs.clear()
        self._gone(self._table.clear(), reason)

    # --- inner ------------------------------------------------------------------------------

    def _add(self, draft: Draft, hashes: Sequence[bytes]) -> None:
        if len(draft.hashes) + len(hashes) > self._table.budget:
            raise self._too_long(len(draft.hashes) + len(hashes))
        there = 0
        if draft.have == len(draft.hashes):  # Behind a block that is missing none is held.
            there = self._table.reach(hashes, 0, len(hashes))
            self._table.grow(draft.run, hashes[:there])
            draft.have += there
        missing = len(hashes) - there
        taken = self._table.take(missing, self._clock(), self._pinned)
        self._gone(taken, PRESSURE)
        draft.hashes += hashes
        draft.slots += taken.slots
        if len(taken.slots) < missing:
            raise OriginRefused(
                "no_room",
                f"{missing} more blocks are needed and {len(taken.slots)} can be had: the others "
                "are being read",
            )

    def _too_long(self, blocks: int) -> OriginRefused:
        held, allowed = self._table.slots, self._table.budget
        cure = "raise --host-tier-bytes"
        if allowed < held:
            cure = f"of which {allowed} may be in use; raise that by `kvferry policy --host-budget`"
        return OriginRefused(
            "no_room", f"the chain has {blocks} blocks, the host tier {held}; {cure}"
        )

    def _order(self, runs: Collection[HostRun], now_s: float) -> Iterable[HostRun]:
        return [run for run in retained_last(runs, now_s) if run.id not in self._drafts]

    def _gone(self, taken: Taken, reason: str) -> None:
        """Tell peers and the ledger of what is not there any more."""
        for slot in taken.freed:
            self._exports.reused(FIRST + slot)
        if taken.lost:
            self._outbox.hand_over(HostEvicted(taken.lost, reason))

    def _pinned(self) -> AbstractSet[int]:
        return {block - FIRST for block in self._exports.pinned_blocks()}

    def _scope(self, draft: Draft, session: str) -> tuple[str, bytes]:
        return session, draft.hashes[0]
