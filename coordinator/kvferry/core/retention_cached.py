"""The chains that only the engine's cache has, in the order in which it will reuse them."""

from __future__ import annotations

from itertools import takewhile

from kvferry.core.retention_value import Chain, Memory

CACHED_MAX = 4_096
"""Chains that are remembered; the oldest are forgotten."""
AHEAD_S = 1.0
"""A chain is in danger when the cache will have reused it within so long, or within the
watermark's blocks if that is more."""


class CachedChains:
    """Chains by key."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}

    def get(self, key: str) -> Chain | None:
        """The chain of this key."""
        return self._chains.get(key)

    def add(self, chain: Chain, memory: Memory) -> None:
        """The chain is the youngest now: everything that is free will be reused before it."""
        self.used_again(chain.key)
        chain.tier, chain.mark = "cache", memory.handed_out + memory.free
        # Older ones go first: blocks before them left the queue since, for they were used again.
        for older in reversed(self._chains.values()):
            if older.mark <= chain.mark:
                break
            older.mark = chain.mark
        self._chains[chain.key] = chain
        if len(self._chains) > CACHED_MAX:
            del self._chains[next(iter(self._chains))]

    def used_again(self, key: str) -> None:
        """A request took the chain's blocks from where they stood: those behind them move up."""
        chain = self._chains.pop(key, None)
        if chain is None:
            return
        for younger in reversed(self._chains.values()):
            if younger.mark <= chain.mark:
                break
            younger.mark = max(chain.mark, younger.mark - len(chain.blocks))

    def drop(self, key: str) -> None:
        """Remember the chain no longer."""
        self._chains.pop(key, None)

    def drop_session(self, session: str) -> None:
        """Remember nothing of a session."""
        for key in [key for key, one in self._chains.items() if one.session == session]:
            del self._chains[key]

    def in_danger(self, memory: Memory) -> list[Chain]:
        """Chains that the engine is about to reuse, the next one first."""
        soon = memory.handed_out + max(memory.watermark, memory.per_s * AHEAD_S)
        return list(takewhile(lambda chain: chain.mark <= soon, self._chains.values()))

    def clear(self) -> None:
        """Remember nothing."""
        self._chains.clear()
