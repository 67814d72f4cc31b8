"""Which blocks are leased, for how long and at what value: policy only, it frees nothing.

The engine's connector takes a reference count on the blocks of each lease and gives it back when
the lease ends. Leases may share blocks; the budget counts distinct ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

LEASES_MAX = 65_536


class EndedLease(msgspec.Struct, frozen=True):
    """A lease that ended.

    ``blocks`` are all that it covered, ``freed`` those that no other lease covers.
    """

    offer: str
    reason: str
    blocks: tuple[int, ...]
    freed: tuple[int, ...]
    held_ms: float


class _Lease:
    __slots__ = ("blocks", "granted_s", "until_s", "value")

    def __init__(
        self, blocks: tuple[int, ...], granted_s: float, until_s: float, value: float
    ) -> None:
        self.blocks = blocks
        self.granted_s = granted_s
        self.until_s = until_s
        self.value = value


class LeaseTable:
    """The leases of one engine within a budget of distinct blocks.

    Not safe for use from several threads: it belongs to the engine's scheduler thread.
    """

    def __init__(self, budget_blocks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget_blocks
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._uses: Counter[int] = Counter()
        self.ended_total: Counter[str] = Counter()
        """Ended leases by reason."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, offer_id: str) -> bool:
        return offer_id in self._leases

    @property
    def total(self) -> int:
        """Distinct blocks under lease."""
        return len(self._uses)

    @property
    def budget(self) -> int:
        """Distinct blocks that may be under lease."""
        return self._budget

    def grant(self, offer_id: str, blocks: Sequence[int], ttl_ms: int, value: float) -> bool:
        """Lease the blocks for ``ttl_ms``; False if the budget does not allow it.

        A lease under a known id is replaced as a whole, or stays as it is when False.
        """
        distinct = tuple(dict.fromkeys(blocks))
        old = self._leases.get(offer_id)
        if not distinct or ttl_ms <= 0 or (old is None and len(self._leases) >= LEASES_MAX):
            return False
        now_s = self._clock()
        if old is not None:
            self._release(old.blocks)
        if self.total + sum(block not in self._uses for block in distinct) > self._budget:
            if old is not None:
                self._uses.update(old.blocks)
            return False
        self._uses.update(distinct)
        granted_s = now_s if old is None else old.granted_s
        self._leases[offer_id] = _Lease(distinct, granted_s, now_s + ttl_ms / 1000, value)
        return True

    def renew(self, offer_id: str, ttl_ms: int, value: float | None = None) -> bool:
        """Keep a lease for ``ttl_ms`` from now, with a new value if given; False if it ended."""
        lease = self._leases.get(offer_id)
        if lease is None:
            return False
        lease.until_s = max(lease.until_s, self._clock() + ttl_ms / 1000)
        if value is not None:
            lease.value = value
        return True

    def revalue(self, offer_id: str, value: float) -> bool:
        """Change only the value, for example once a target has read the blocks."""
        lease = self._leases.get(offer_id)
        if lease is None:
            return False
        lease.value = value
        return True

    def end(self, offer_id: str, reason: str) -> EndedLease | None:
        """End a lease; None if there is none of this id."""
        lease = self._leases.pop(offer_id, None)
        if lease is None:
            return None
        freed = self._release(lease.blocks)
        self.ended_total[reason] += 1
        held_ms = (self._clock() - lease.granted_s) * 1000
        return EndedLease(offer_id, reason, lease.blocks, freed, held_ms)

    def expired(self, now: float | None = None) -> list[str]:
        """Leases whose time is up at ``now`` (seconds of the clock); they stay until ended."""
        now_s = self._clock() if now is None else now
        return [offer for offer, lease in self._leases.items() if lease.until_s <= now_s]

    def victims(self, needed_blocks: int, pinned: AbstractSet[int]) -> list[str]:
        """Leases to end so that ``needed_blocks`` distinct blocks lose their last lease.

        The least value first, the one that ends soonest among equals, and never one that shares
        a block with ``pinned``. Leases that turn out not to be needed are left out. If all that
        may end are not enough, all of them are returned.
        """
        chosen: list[str] = []
        left: dict[int, int] = {}
        freed = 0
        for offer in sorted(self._leases, key=self._worth):
            if freed >= needed_blocks:
                break
            blocks = self._leases[offer].blocks
            if not pinned.isdisjoint(blocks):
                continue
            chosen.append(offer)
            freed += self._take(blocks, left)
        if freed < needed_blocks:
            return chosen
        return self._spare(chosen, left, freed - needed_blocks)

    def _spare(self, chosen: list[str], left: dict[int, int], surplus: int) -> list[str]:
        """Leave out, the most valuable first, what frees no more than the surplus."""
        kept: list[str] = []
        for offer in reversed(chosen):
            blocks = self._leases[offer].blocks
            frees = sum(left[block] == 0 for block in blocks)
            if frees <= surplus:
                surplus -= frees
                for block in blocks:
                    left[block] += 1
            else:
                kept.append(offer)
        kept.reverse()
        return kept

    def _worth(self, offer_id: str) -> tuple[float, float]:
        lease = self._leases[offer_id]
        return lease.value, lease.until_s

    def _take(self, blocks: Iterable[int], left: dict[int, int]) -> int:
        """Count one use less of each block; returns how many have none left."""
        freed = 0
        for block in blocks:
            left[block] = left.get(block, self._uses[block]) - 1
            freed += left[block] == 0
        return freed

    def _release(self, blocks: Iterable[int]) -> tuple[int, ...]:
        freed = []
        for block in blocks:
            self._uses[block] -= 1
            if not self._uses[block]:
                del self._uses[block]
                freed.append(block)
        return tuple(freed)
