"""What a node keeps, for how long, and why it lets go: the whole policy, without clock or memory.

A finished chain stays in the engine's cache, which costs nothing, and is only remembered here.
It is leased when it must not vanish: another engine is about to read it, a client asked for it, or
the cache is about to reuse it although its session is likely to come back. Leases stay within a
budget of distinct blocks, never take what running requests need, and end least value first.

Whoever uses this carries out the actions in their order, on blocks or on paper: the connector on
vLLM's pool, a trace study on simulated ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvferry.core.leases import HBM
from kvferry.core.retention_actions import (
    END,
    EXPECTED,
    EXPIRED,
    HANDOVER,
    LEASE,
    POLICY,
    PRESSURE,
    RENEW,
    RETAIN,
    SESSION_END,
    SUPERSEDED,
    TO_HOST,
    Action,
    host_ends,
)
from kvferry.core.retention_cached import CachedChains
from kvferry.core.retention_gaps import GapModel, prior
from kvferry.core.retention_host import HostShelf
from kvferry.core.retention_leases import LeaseSet, Pinned, no_pins
from kvferry.core.retention_value import Budgets, Chain, Memory, Rules, lease_reuse, value

RENEW_SHARE = 1 / 3
"""A lease is renewed once no more than this share of it is left."""


class Retention:
    """The chains of one node.

    Attributes:
        gaps: when sessions come back; may be replaced at any time.
        host: the chains in the host tier.
    """

    def __init__(self, rules: Rules | None = None, gaps: GapModel | None = None) -> None:
        self.rules = rules if rules is not None else Rules()
        self.gaps = gaps if gaps is not None else prior()
        self.host = HostShelf(self.rules)
        self._leases = LeaseSet()
        self._cached = CachedChains()

    @property
    def leased_blocks(self) -> int:
        """Distinct blocks under lease in the engine's memory."""
        return self._leases.blocks

    def leases(self) -> Iterable[Chain]:
        """The chains under lease in the engine's memory."""
        return self._leases.chains.values()

    def find(self, key: str) -> Chain | None:
        """The chain of this key in the engine's memory."""
        return self._leases.chains.get(key) or self._cached.get(key) or self.host.moving(key)

    def rule(self, rules: Rules) -> None:
        """Keep by other rules from now on; leases that stand keep their time."""
        self.rules = self.host.rules = rules

    # --- what happens on the node -----------------------------------------------------------

    def offered(
        self, now_s: float, chain: Chain, memory: Memory, pinned: Pinned = no_pins
    ) -> list[Action]:
        """A request ended and left ``chain``; its blocks are about to become free.

        Chains that it covers are of the same session one turn ago: what was asked for them goes
        on, and their leases end as superseded. A chain that is known already was used again.
        """
        known = self._leases.chains.get(chain.key)
        if known is not None:
            return self._used_again(now_s, known, chain)
        older = [found for key in chain.covers if (found := self.find(key)) is not None]
        for old in older:
            chain.turns = max(chain.turns, old.turns + 1)
            chain.retain_until_s = max(chain.retain_until_s, old.retain_until_s)
        chain.retain_until_s = self.rules.retained_until_s(now_s, chain.retain_until_s)
        self._to_cache(chain, memory)
        why = self._why_at_once(now_s, chain, memory, goes_on=any(o.tier == HBM for o in older))
        actions = self._lease(now_s, chain, memory, why, pinned, from_free=False) if why else []
        # What the longer lease keeps may be read on; but where two requests computed the same side
        # by side, each has blocks of its own.
        goes_on = frozenset(chain.blocks if chain.tier == HBM else ())
        for old in older:
            unread = old.awaited and not old.copies
            if old.tier == HBM and (chain.tier == HBM or not unread):
                actions += self._end_unread([old], SUPERSEDED, memory, lambda: pinned() - goes_on)
            self._cached.used_again(old.key)
        return actions

    def read(self, key: str, *, kept_there: bool = False) -> None:
        """Another node has read the chain ``intact``, and is its keeper if ``kept_there``."""
        self.host.read(key)
        chain = self.find(key)
        if chain is not None:
            chain.copies += 1
            chain.awaited, chain.kept_elsewhere = False, kept_there

    def session_ended(self, session: str, memory: Memory, pinned: Pinned = no_pins) -> list[Action]:
        """The client says that the session is over: nothing of it is worth keeping."""
        if not session:
            return []
        over = [c for c in self.leases() if c.session == session]
        actions = self._end_unread(over, SESSION_END, memory, pinned)
        self._cached.drop_session(session)
        return actions + host_ends(self.host.session_ended(session), SESSION_END)

    def lost(self, key: str, memory: Memory) -> None:
        """The engine's memory has lost the chain; a copy in the host tier is not concerned."""
        self._cached.drop(key)
        memory.free += self._leases.remove(key)

    def clear(self) -> list[str]:
        """Forget everything; returns the keys of the leases that stood."""
        stood = [*self._leases.chains, *self.host.clear()]
        self._leases = LeaseSet()
        self._cached.clear()
        return stood

    # --- from time to time ------------------------------------------------------------------

    def sweep(self, now_s: float, memory: Memory, pinned: Pinned = no_pins) -> list[Action]:
        """Renew and end leases, and save what the cache is about to reuse.

        Cheap where nothing is due. Meant to be called a few times a second and whenever
        ``memory.spare`` is negative.
        """
        actions = self._renew_or_expire(now_s, memory, pinned)
        actions += self.room(now_s, -memory.spare, memory, pinned)
        for chain in self.host.due(memory):
            idle = self._cached.get(chain.key) is chain
            gone = self.host.claim(now_s, chain, self.gaps, memory) if idle else None
            if gone is not None:
                actions += [*host_ends(gone, PRESSURE), Action(TO_HOST, chain.key, EXPECTED)]
        for chain in self._worth_saving(now_s, memory):
            actions += self._lease(now_s, chain, memory, EXPECTED, pinned, from_free=True)
        return actions

    def room(
        self,
        now_s: float,
        blocks: int,
        memory: Memory,
        pinned: Pinned = no_pins,
        reason: str = PRESSURE,
    ) -> list[Action]:
        """End leases so that ``blocks`` distinct blocks become free, or as many as may."""
        if blocks <= 0 or not self._leases.blocks:
            return []
        less, _ = self._leases.victims(now_s, blocks, memory, self.gaps, self.rules, pinned)
        return [self._end(chain, reason, memory) for chain in less]

    def fit(
        self, now_s: float, memory: Memory, budgets: Budgets, pinned: Pinned = no_pins
    ) -> list[Action]:
        """End what is over budgets that were lowered: the least valuable first, none that is read;
        of the host tier what is there longest."""
        over = self._leases.blocks - budgets.lease_blocks
        ended = self.room(now_s, over, memory, pinned, POLICY)
        return ended + host_ends(self.host.fit(budgets.host_blocks), POLICY)

    def end_all(self, reason: str, memory: Memory, pinned: Pinned = no_pins) -> list[Action]:
        """End every lease in the engine's memory; what is pinned ends once it is not."""
        return self._end_unread(list(self.leases()), reason, memory, pinned)

    def moved(self, now_s: float, key: str, *, whole: bool) -> list[Action]:
        """The copy to the host tier ended, ``whole`` or not: a whole one is leased there."""
        return host_ends(self.host.arrived(now_s, key, whole=whole), SUPERSEDED)

    # --- inner ------------------------------------------------------------------------------

    def _used_again(self, now_s: float, known: Chain, again: Chain) -> list[Action]:
        known.ended_s, known.turns = again.ended_s, max(known.turns, again.turns)
        asked_s = self.rules.retained_until_s(now_s, again.retain_until_s)
        known.retain_until_s = max(known.retain_until_s, asked_s)
        if again.awaited:
            known.awaited, known.copies = True, 0
        ttl_ms = self.rules.ttl_ms(now_s, known)
        if now_s + ttl_ms / 1000 <= known.until_s:
            return []
        known.until_s = now_s + ttl_ms / 1000
        return [Action(RENEW, known.key, known.why, ttl_ms)]

    def _why_at_once(self, now_s: float, chain: Chain, memory: Memory, *, goes_on: bool) -> str:
        """Why a chain is leased as soon as it exists; empty if the cache will do for now."""
        if chain.awaited:
            return HANDOVER
        if chain.retain_until_s > now_s:
            return RETAIN
        reuse = lease_reuse(now_s, chain, memory, self.gaps, self.rules) if goes_on else 0.0
        return EXPECTED if reuse >= self.rules.reuse_min else ""

    def _worth_saving(self, now_s: float, memory: Memory) -> list[Chain]:
        """Of the chains in danger those that deserve a lease, the most valuable first; what is
        left to its fate is remembered no longer."""
        saving: list[tuple[float, Chain]] = []
        for chain in self._cached.in_danger(memory):
            self._cached.drop(chain.key)
            if self.host.find(chain.key) is not None:
                continue  # From there it comes back for little.
            reuse = lease_reuse(now_s, chain, memory, self.gaps, self.rules)
            if reuse >= self.rules.reuse_min:
                saving.append((value(chain, reuse, self.rules), chain))
        saving.sort(key=lambda pair: -pair[0])
        return [chain for _, chain in saving]

    def _lease(
        self,
        now_s: float,
        chain: Chain,
        memory: Memory,
        why: str,
        pinned: Pinned,
        *,
        from_free: bool,
    ) -> list[Action]:
        """Lease a chain if it fits, in place of others worth clearly less if it must be.

        Args:
            from_free: its blocks count as free now; otherwise a request still holds them.
        """
        less = self._leases.way_for(
            now_s, chain, memory, self.gaps, self.rules, pinned, from_free=from_free
        )
        if less is None:
            return []
        actions = [self._end(one, PRESSURE, memory) for one in less]
        fresh = self._leases.fresh(chain)
        ttl_ms = self.rules.ttl_ms(now_s, chain)
        chain.tier, chain.why, chain.until_s = HBM, why, now_s + ttl_ms / 1000
        self._cached.drop(chain.key)
        self._leases.add(chain)
        if from_free:
            memory.free -= fresh
        actions.append(Action(LEASE, chain.key, why, ttl_ms))
        return actions

    def _renew_or_expire(self, now_s: float, memory: Memory, pinned: Pinned) -> list[Action]:
        actions: list[Action] = []
        ending: list[Chain] = []
        soon_s = now_s + self.rules.lease_ms / 1000 * RENEW_SHARE
        for chain in [c for c in self.leases() if c.until_s <= soon_s]:
            over = chain.until_s <= now_s
            if over:
                chain.awaited = False  # Whoever was to read it has not come.
            elif chain.awaited or chain.retain_until_s > now_s:
                continue  # Its end is fixed.
            reuse = lease_reuse(now_s, chain, memory, self.gaps, self.rules)
            if reuse >= self.rules.reuse_min and not chain.over:
                ttl_ms = self.rules.ttl_ms(now_s, chain)
                chain.until_s, chain.why = now_s + ttl_ms / 1000, EXPECTED
                actions.append(Action(RENEW, chain.key, EXPECTED, ttl_ms))
            elif over:
                ending.append(chain)
        return actions + self._end_unread(ending, EXPIRED, memory, pinned)

    def _end_unread(
        self, over: Sequence[Chain], reason: str, memory: Memory, pinned: Pinned
    ) -> list[Action]:
        """End leases, and have those that somebody reads end for the same reason after that."""
        held = pinned() if over else frozenset()
        actions: list[Action] = []
        for chain in over:
            if held.isdisjoint(chain.blocks):
                actions.append(self._end(chain, chain.over or reason, memory))
            else:
                chain.over = chain.over or reason
                chain.until_s = chain.retain_until_s = 0.0
        return actions

    def _end(self, chain: Chain, reason: str, memory: Memory) -> Action:
        """End a lease; the chain is then the youngest in the engine's cache."""
        memory.free += self._leases.remove(chain.key)
        chain.why, chain.over, chain.until_s = "", "", 0.0
        self._to_cache(chain, memory)
        return Action(END, chain.key, reason)

    def _to_cache(self, chain: Chain, memory: Memory) -> None:
        self._cached.add(chain, memory)
        if memory.host_budget > 0:
            self.host.wait(chain)
