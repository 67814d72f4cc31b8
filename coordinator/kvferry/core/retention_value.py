"""What keeping a chain is worth: expected reuse, times the time that it saves, by bytes."""

from __future__ import annotations

import math

import msgspec

from kvferry.core.retention_gaps import GapModel


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may set about retention."""

    lease_ms: int = 30_000
    """How long a lease lasts; it is renewed while that is worth it."""
    retain_max_ms: int = 600_000
    """A request may ask for no longer retention than this."""
    reuse_min: float = 0.05
    """Chains whose next turn is less likely to profit than this are left to the cache."""
    copy_share: float = 0.1
    """Once another node has the blocks too, losing ours costs a move instead of a recompute:
    so much of the saving is left."""
    displace_ratio: float = 1.25
    """A lease is ended for another chain only if that is worth so many times more."""

    def retained_until_s(self, now_s: float, asked_until_s: float) -> float:
        """Until when a request has its chain kept that asks for it until then. What is over the
        bound must not stay asked for: its lease would be renewed again and again."""
        return min(asked_until_s, now_s + self.retain_max_ms / 1000)

    def ttl_ms(self, now_s: float, chain: Chain) -> int:
        """How long a lease lasts that begins now: as long as was asked for, within the bound."""
        asked_ms = int((chain.retain_until_s - now_s) * 1000)
        asked = asked_ms > 0 and not chain.awaited
        return min(asked_ms, self.retain_max_ms) if asked else self.lease_ms


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """What may be kept at most, in blocks."""

    lease_blocks: int
    host_blocks: int


class Memory(msgspec.Struct, kw_only=True):
    """A node's memory at a moment, in blocks. Whoever acts on it keeps ``free`` up to date."""

    free: int
    """Blocks that can be handed out, cached ones that nobody holds included."""
    budget: int
    """Distinct blocks that leases may hold."""
    watermark: int = 0
    """So many must stay free; leases end below that."""
    needed: int = 0
    """Blocks that running requests are about to take."""
    handed_out: float = 0.0
    """Blocks handed out since the node began."""
    per_s: float = 0.0
    """Blocks handed out in a second of late."""
    host_budget: int = 0
    """Blocks that the host tier may hold; 0 without one."""

    @property
    def spare(self) -> int:
        """Blocks that leases may still take from the free ones; negative under pressure."""
        return self.free - self.needed - self.watermark


class Chain(msgspec.Struct, kw_only=True, gc=False):
    """A chain of blocks on a node, from a prompt's first block on.

    ``tier`` is ``cache`` while only the engine's cache has it, ``hbm`` under a lease, ``host`` in
    the host pool. Times are seconds of one clock.
    """

    key: str
    blocks: tuple[int, ...]
    """Distinct and opaque: chains that share memory share numbers."""
    bytes: int
    saved_ms: float
    """What a turn that finds the chain is spared: recompute time, less what fetching it costs."""
    session: str = ""
    turns: int = 1
    """Turns of the session that the chain holds, as far as known."""
    ended_s: float = 0.0
    """When its last turn ended."""
    retain_until_s: float = 0.0
    """A client asked for it to be kept until then; 0 if none did."""
    awaited: bool = False
    """Another engine is about to read it, and has not yet."""
    copies: int = 0
    """Transfers of it to other nodes that succeeded."""
    kept_elsewhere: bool = False
    """Another node has it, and that one is to keep it in its host tier."""
    tier: str = "cache"
    until_s: float = 0.0
    """End of the lease."""
    covers: tuple[str, ...] = ()
    """Chains that it contains whole."""
    mark: float = 0.0
    """``Memory.handed_out`` at which the engine's cache will have reused it."""
    why: str = ""
    """What the lease is for."""
    over: str = ""
    """Why the lease ends as soon as nobody reads the chain; empty while it goes on."""


def stays_s(memory: Memory) -> float:
    """Seconds that blocks which become free now stay in the engine's cache."""
    return memory.free / memory.per_s if memory.per_s > 0 else math.inf


def left_s(chain: Chain, memory: Memory) -> float:
    """Seconds until the engine's cache will have reused a chain that nobody keeps."""
    left = max(0.0, chain.mark - memory.handed_out)
    return left / memory.per_s if memory.per_s > 0 else math.inf


def expected_reuse(
    chain: Chain, now_s: float, after_s: float, window_s: float, gaps: GapModel
) -> float:
    """Probability that keeping the chain gives its session's next turn a hit.

    Args:
        chain: the chain.
        now_s: the present.
        after_s: seconds from now for which the cache has it in any case: a turn that comes
            within them needs nobody's help.
        window_s: seconds that follow on these, for which it would be kept.
        gaps: when sessions come back.
    """
    if chain.retain_until_s > now_s or (chain.awaited and not chain.copies):
        return 1.0
    age_s = max(0.0, now_s - chain.ended_s)
    begin = age_s + after_s
    return gaps.returns(age_s, begin, begin + window_s, chain.turns)


def lease_reuse(now_s: float, chain: Chain, memory: Memory, gaps: GapModel, rules: Rules) -> float:
    """Probability that a lease gives the next turn a hit that the cache alone would not."""
    after_s = stays_s(memory) if chain.tier == "hbm" else left_s(chain, memory)
    return expected_reuse(chain, now_s, after_s, rules.lease_ms / 1000, gaps)


def value(chain: Chain, reuse: float, rules: Rules) -> float:
    """Milliseconds that a byte kept is expected to save."""
    saved = chain.saved_ms * (rules.copy_share if chain.copies else 1.0)
    return reuse * saved / max(1, chain.bytes)
