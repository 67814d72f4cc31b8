"""The host tier's table: which chain hash lies in which slot, and which chains give way.

A slot is room for one block over all layers, in each worker's host memory under the same number.
The table moves no byte: the engine's scheduler side asks it for slots, has the workers copy, and
says when a copy is there. What it holds are *runs*: chains from their first block on. Runs share
the blocks that they have in common. A run gives way from its tail on, for a shorter prefix is
worth more than a hole at its start, and never a block that somebody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from kvferry.node.export.host_runs import HostRun, Order, Taken, least_recently_used


class HostTable:
    """Runs of one engine in ``slots`` slots.

    Belongs to the engine's scheduler thread; :meth:`present` may be called by any.

    Attributes:
        budget: so many slots may be in use; all of them unless it is set.
    """

    def __init__(self, slots: int, order: Order = least_recently_used) -> None:
        self.budget = slots
        self._order = order
        self._free = list(range(slots - 1, -1, -1))
        self._holds: list[bytes | None] = [None] * slots
        self._slot_of: dict[bytes, int] = {}
        self._uses: list[int] = [0] * slots
        """How many runs have the slot's block."""
        self._readers: dict[int, int] = {}
        """Copies out of a slot that have not ended."""
        self._runs: dict[str, HostRun] = {}
        self._by_tail: dict[bytes, str] = {}

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._slot_of)

    @property
    def slots(self) -> int:
        return len(self._holds)

    @property
    def free(self) -> int:
        """Slots that nobody has."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Slots that are taken, filled or not. Any thread."""
        return len(self._holds) - len(self._free)

    @property
    def runs(self) -> int:
        return len(self._runs)

    def present(self, slot: int) -> bytes | None:
        """The chain hash of the block in a slot; None while there is none."""
        return self._holds[slot]

    # --- looking ----------------------------------------------------------------------------

    def reach(self, hashes: Sequence[bytes], start: int, stop: int) -> int:
        """How many blocks from ``start`` on are held without a hole, up to ``stop``."""
        held = self._slot_of
        at = start
        while at < stop and hashes[at] in held:
            at += 1
        return at - start

    def slot(self, chain_hash: bytes) -> int | None:
        """Where a block is; None if it is not held."""
        return self._slot_of.get(chain_hash)

    def use(self, tail: bytes, now_s: float) -> bool:
        """The run that ends with ``tail`` is of use again; False if there is none."""
        run = self._runs.get(self._by_tail.get(tail, ""))
        if run is None:
            return False
        run.used_s = now_s
        self._runs[run.id] = self._runs.pop(run.id)
        return True

    # --- filling ----------------------------------------------------------------------------

    def begin(self, run_id: str, session: str, now_s: float) -> None:
        """A run without blocks yet; it ends with :meth:`settle`."""
        self._runs[run_id] = HostRun(run_id, session, now_s)

    def take(
        self, count: int, now_s: float, pinned: Callable[[], AbstractSet[int]], sparing: str = ""
    ) -> Taken:
        """Up to ``count`` slots within the budget, free ones first; then runs other than
        ``sparing`` give way.

        ``pinned`` is asked for slots that must stay only if something has to give way. A slot
        that was taken comes back by :meth:`fill` or :meth:`give_back`.
        """
        taken = Taken([], [], [], set())
        missing = count - self._allowed()
        if missing > 0:
            self._make_room(missing, pinned(), now_s, sparing, taken)
        free, given = self._free, min(count, self._allowed())
        if given > 0:
            taken.slots[:] = free[: -given - 1 : -1]
            del free[-given:]
        return taken

    def fill(self, slots: Sequence[int], hashes: Sequence[bytes]) -> None:
        """``slots[i]`` has ``hashes[i]`` now, which no other slot has."""
        held = self._holds
        self._slot_of.update(zip(hashes, slots, strict=True))
        for slot, chain_hash in zip(slots, hashes, strict=True):
            held[slot] = chain_hash

    def give_back(self, slots: Iterable[int]) -> None:
        """Nothing was copied into these."""
        self._free.extend(slots)

    def grow(self, run_id: str, hashes: Sequence[bytes]) -> None:
        """The run has these blocks too, which are held and follow those that it has."""
        uses, slot_of = self._uses, self._slot_of
        for chain_hash in hashes:
            uses[slot_of[chain_hash]] += 1
        self._runs[run_id].hashes.extend(hashes)

    def settle(self, run_id: str) -> tuple[HostRun | None, set[str]]:
        """The run is whole, and those end that it covers: the run, and the names of these.

        A run without any block ends, and there is none.
        """
        run = self._runs[run_id]
        if not run.hashes:
            del self._runs[run_id]
            return None, set()
        over: set[str] = set()
        for chain_hash in run.hashes:
            covered = self._by_tail.pop(chain_hash, None)
            if covered is not None:
                over.add(covered)
                old = self._runs[covered]
                run.retain_until_s = max(run.retain_until_s, old.retain_until_s)
                # Nothing goes, for the new run has all that the old one had.
                self._drop(old, Taken([], [], [], set()))
        self._by_tail[run.hashes[-1]] = run_id
        return run, over

    # --- reading ----------------------------------------------------------------------------

    def hold(self, slots: Iterable[int]) -> None:
        """A copy out of these begins: their blocks stay."""
        for slot in slots:
            self._readers[slot] = self._readers.get(slot, 0) + 1

    def release(self, slots: Iterable[int]) -> None:
        """A copy out of these has ended."""
        for slot in slots:
            left = self._readers[slot] - 1
            if left:
                self._readers[slot] = left
                continue
            del self._readers[slot]
            if self._holds[slot] is None:
                self._free.append(slot)  # Its block was given up meanwhile.

    # --- ending -----------------------------------------------------------------------------

    def slots_of(self, run_id: str) -> list[int]:
        """The slots that a run has; none if there is no such run."""
        run = self._runs.get(run_id)
        return [] if run is None else [self._slot_of[chain_hash] for chain_hash in run.hashes]

    def end(self, run_id: str) -> Taken:
        """A run is not kept any longer: blocks that no other run has go."""
        taken = Taken([], [], [], set())
        run = self._runs.get(run_id)
        if run is not None:
            if run.hashes and self._by_tail.get(run.hashes[-1]) == run_id:
                del self._by_tail[run.hashes[-1]]
            self._drop(run, taken)
        return taken

    def fit(self, now_s: float, pinned: Callable[[], AbstractSet[int]]) -> Taken:
        """Runs give way until no more slots are in use than the budget allows, or none may."""
        taken = Taken([], [], [], set())
        over = self.used - self.budget
        if over > 0:
            self._make_room(over, pinned(), now_s, "", taken)
        return taken

    def discard(self, hashes: Iterable[bytes]) -> Taken:
        """These blocks are no good: they go, and with them the rest of each run behind them.

        Slots that are still read become free when their readers have ended.
        """
        bad = {chain_hash for chain_hash in hashes if chain_hash in self._slot_of}
        taken = Taken([], [], [], set())
        if not bad:
            return taken
        for run in list(self._runs.values()):
            first = next((i for i, h in enumerate(run.hashes) if h in bad), len(run.hashes))
            while len(run.hashes) > first:
                self._shorten(run, taken)
        for chain_hash in bad & self._slot_of.keys():
            self._empty(self._slot_of[chain_hash], taken)  # No run had it yet.
        return taken

    def clear(self) -> Taken:
        """Everything goes; slots that are still read become free when their readers have ended."""
        return self.discard(list(self._slot_of))

    # --- inner ------------------------------------------------------------------------------

    def _allowed(self) -> int:
        """Free slots that the budget lets be taken; negative where it is exceeded."""
        return min(len(self._free), self.budget - self.used)

    def _make_room(
        self, missing: int, pinned: AbstractSet[int], now_s: float, sparing: str, taken: Taken
    ) -> None:
        for run in list(self._order(self._runs.values(), now_s)):
            while run.hashes and len(taken.freed) < missing and run.id != sparing:
                slot = self._slot_of[run.hashes[-1]]
                if slot in pinned or slot in self._readers:
                    break
                self._shorten(run, taken)
            if len(taken.freed) >= missing:
                return

    def _shorten(self, run: HostRun, taken: Taken) -> None:
        """Take the last block from the run; it goes if no other run has it."""
        chain_hash = run.hashes.pop()
        taken.runs.add(run.id)
        self._unuse(chain_hash, taken)
        if self._by_tail.get(chain_hash) != run.id:
            return  # It is still being filled.
        del self._by_tail[chain_hash]
        if not run.hashes or run.hashes[-1] in self._by_tail:
            self._drop(run, taken)  # Nothing is left, or just what another run is.
        else:
            self._by_tail[run.hashes[-1]] = run.id

    def _drop(self, run: HostRun, taken: Taken) -> None:
        """End a run; blocks that no other run has go."""
        for chain_hash in run.hashes:
            self._unuse(chain_hash, taken)
        run.hashes.clear()
        del self._runs[run.id]

    def _unuse(self, chain_hash: bytes, taken: Taken) -> None:
        slot = self._slot_of[chain_hash]
        self._uses[slot] -= 1
        if not self._uses[slot]:
            self._empty(slot, taken)

    def _empty(self, slot: int, taken: Taken) -> None:
        chain_hash = self._holds[slot]
        assert chain_hash is not None
        self._holds[slot] = None
        del self._slot_of[chain_hash]
        taken.lost.append(chain_hash)
        taken.freed.append(slot)
        if slot not in self._readers:
            self._free.append(slot)
