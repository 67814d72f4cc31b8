"""Which chains a host tier holds, and whether another one is worth its place there."""

from __future__ import annotations

from itertools import islice, takewhile

import msgspec

from kvferry.core.retention_cached import AHEAD_S
from kvferry.core.retention_gaps import NEVER_S, GapModel
from kvferry.core.retention_value import Chain, Memory, Rules, expected_reuse, value

LOOK_MAX = 128
"""Chains that are weighed against one that comes: those that are there longest."""
WAITING_MAX = 4_096
"""Chains that wait for their copy; the oldest are forgotten."""
AHEAD_SHARE = 0.25
"""A chain is copied once the cache is this far from reusing it, as a share of what it has free. A
copy costs little and must be complete by then; while the cache has room for all, none is made.
Until then both have it, so an earlier copy wastes memory."""
WINDOW_S = 120.0
"""Chains are weighed by what they are expected to save within so long. A place is free again for
another one after that, so what comes soon counts for more than what comes at all."""


class HostShelf:
    """The chains in the host tier, oldest first, and those on their way there.

    Chains that share blocks count each time.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._chains: dict[str, Chain] = {}
        self._waiting: dict[str, Chain] = {}
        """In the order in which the engine's cache will reuse them."""
        self._moving: dict[str, Chain] = {}
        self.blocks = 0
        """Blocks that its chains have."""

    def __len__(self) -> int:
        return len(self._chains)

    def find(self, key: str) -> Chain | None:
        """The chain of this key."""
        return self._chains.get(key)

    def moving(self, key: str) -> Chain | None:
        """The chain of this key while it is copied."""
        return self._moving.get(key)

    def wait(self, chain: Chain) -> None:
        """The engine's cache has the chain: it may have to be copied before that reuses it."""
        self._waiting.pop(chain.key, None)
        self._waiting[chain.key] = chain
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]

    def due(self, memory: Memory) -> list[Chain]:
        """Chains whose time to be copied has come; each is named once.

        What another node keeps (:mod:`kvferry.core.retention_keeper`) is not kept twice.
        """
        # Never later than it is in danger, for then it is forgotten.
        ahead = max(memory.watermark, memory.per_s * AHEAD_S, memory.free * AHEAD_SHARE)
        soon = memory.handed_out + memory.needed + ahead
        found = list(takewhile(lambda chain: chain.mark <= soon, self._waiting.values()))
        for chain in found:
            del self._waiting[chain.key]
        ours = [chain for chain in found if not chain.kept_elsewhere]
        return [c for c in ours if c.key not in self._chains and c.key not in self._moving]

    def claim(self, now_s: float, chain: Chain, gaps: GapModel, memory: Memory) -> list[str] | None:
        """Begin to copy a chain: which others leave for it; None if it is not worth its place."""
        # Who has it too may forget it: our copy is worth what it is worth alone.
        chain = msgspec.structs.replace(chain, copies=0)
        coming = sum(len(one.blocks) for one in self._moving.values())
        gone = self.room_for(now_s, chain, gaps, memory.host_budget - coming)
        if gone is None:
            return None
        for key in gone:
            self.drop(key)
        self._moving[chain.key] = chain
        return gone

    def arrived(self, now_s: float, key: str, *, whole: bool) -> list[str]:
        """A copy has ended; returns keys of shorter chains that a whole one makes superfluous."""
        chain = self._moving.pop(key, None)
        return self.put(now_s, chain) if chain is not None and whole else []

    def room_for(self, now_s: float, chain: Chain, gaps: GapModel, budget: int) -> list[str] | None:
        """Which chains must leave so that ``chain`` has a place among ``budget`` blocks.

        None if it is not worth that. The caller drops them. However unlikely its session is to come
        back, it may have a place that is free, or that of one worth clearly less.
        """
        need = self.blocks + len(chain.blocks) - budget
        reuse = expected_reuse(chain, now_s, 0.0, WINDOW_S, gaps)
        if len(chain.blocks) > budget or reuse <= 0.0:
            return None
        below = value(chain, reuse, self.rules) / self.rules.displace_ratio
        oldest = list(islice(self._chains.values(), LOOK_MAX)) if need > 0 else []
        gone: list[str] = []
        for worth, one in sorted(
            ((self._value(now_s, one, gaps), one) for one in oldest), key=lambda pair: pair[0]
        ):
            if need <= 0 or worth >= below:
                break
            gone.append(one.key)
            need -= len(one.blocks)
        return gone if need <= 0 else None

    def fit(self, budget: int) -> list[str]:
        """Drop and name the chains that are there longest, until the rest fits the budget."""
        over: list[str] = []
        for key in list(self._chains):
            if self.blocks <= budget:
                break
            self.drop(key)
            over.append(key)
        return over

    def read(self, key: str) -> None:
        """Another node has read the chain: the session goes on there, and ours is worth less."""
        for chain in (self._chains.get(key), self._moving.get(key)):
            if chain is not None:
                chain.copies += 1

    def put(self, now_s: float, chain: Chain) -> list[str]:
        """A chain's copy is complete; returns keys of shorter ones that it makes superfluous."""
        self.drop(chain.key)
        copy = msgspec.structs.replace(chain, tier="host", until_s=now_s + NEVER_S)
        self._chains[chain.key] = copy
        self.blocks += len(chain.blocks)
        return [key for key in chain.covers if self.drop(key)]

    def drop(self, key: str) -> bool:
        """The chain is not there any more; False if it was not."""
        chain = self._chains.pop(key, None)
        if chain is None:
            return False
        self.blocks -= len(chain.blocks)
        return True

    def expired(self, now_s: float) -> list[str]:
        """Drop and name the chains that have lain there for too long."""
        over = [one.key for one in self._chains.values() if one.until_s <= now_s]
        for key in over:
            self.drop(key)
        return over

    def session_ended(self, session: str) -> list[str]:
        """Drop and name the chains of a session."""
        over = [one.key for one in self._chains.values() if one.session == session]
        for key in over:
            self.drop(key)
        return over

    def clear(self) -> list[str]:
        """Drop and name everything."""
        keys = list(self._chains)
        self._chains.clear()
        self._waiting.clear()
        self._moving.clear()
        self.blocks = 0
        return keys

    def _value(self, now_s: float, chain: Chain, gaps: GapModel) -> float:
        reuse = expected_reuse(chain, now_s, 0.0, WINDOW_S, gaps)
        return value(chain, reuse, self.rules)
