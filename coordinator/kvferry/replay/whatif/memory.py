"""One simulated engine: its pool, what it leases, its host tier, in units of some blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from kvferry.ids import sample_stride
from kvferry.replay.nodes.clock import Clock
from kvferry.replay.nodes.leases import ChainLeases, Limits
from kvferry.replay.nodes.pool import BlockPool
from kvferry.replay.whatif.policy import Keeping

CHAINS_MAX = 16_384
"""More than retention remembers of a node."""
COPY_BYTES_S = 4e9
"""A node copies to its host memory at this rate: the connector's default."""


class Engine:
    """What :class:`kvferry.replay.nodes.leases.Engine` asks for, and holders of chains.

    Args:
        name: of the node.
        block_size: tokens in a block of the engine.
        block_bytes: bytes of one.
        grain: blocks in a unit.
        keeping: how it keeps.
        clock: the ledger's time.
        saved_ms: what a hit of so many tokens on it spares.
        shares: how much each node is to keep in host memory, by name; changes as nodes come.
    """

    def __init__(
        self,
        name: str,
        *,
        block_size: int,
        block_bytes: int,
        grain: int,
        keeping: Keeping,
        clock: Clock,
        saved_ms: Callable[[int], float],
        shares: Mapping[str, int],
    ) -> None:
        self.name = name
        self.block_size, self.keeping = block_size, keeping
        self.stride, self.grain = sample_stride(block_size), grain
        self.unit_tokens = grain * block_size
        self.block_bytes = grain * block_bytes
        """Bytes of one unit."""
        self.pool = BlockPool(max(1, keeping.blocks // grain), lambda unit: None)
        self.ended_leases: Counter[str] = Counter()
        self._clock, self._saved_ms = clock, saved_ms
        self.leases = ChainLeases(
            self,
            host_blocks=keeping.host_blocks // grain,
            limits=self._limits(),
            shares=shares,
            chains_max=CHAINS_MAX,
        )

    def keep_by(self, keeping: Keeping) -> None:
        """Keep so from now on. The size of its pool stays, and of its host tier only a share may
        be used."""
        self.keeping = keeping
        self.leases.keep_by(self._limits(), keeping.host_blocks // self.grain)

    def _limits(self) -> Limits:
        keeping = self.keeping
        return Limits(
            rules=keeping.rules,
            budget=keeping.lease_blocks // self.grain,
            watermark=keeping.watermark_blocks // self.grain,
        )

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    def saved_ms(self, blocks: int) -> float:
        return self._saved_ms(blocks * self.unit_tokens)

    def save(self, size: int, then: Callable[[], None]) -> None:
        self._clock.at(self._clock.now_s + size / COPY_BYTES_S, then)

    def host_came(self, blocks: Sequence[int]) -> None:
        """Nobody counts these."""

    def host_lost(self, block: int, reason: str) -> None:
        """Nobody counts these either."""

    def ended(self, tier: str, reason: str) -> None:
        self.ended_leases[f"{tier} {reason}"] += 1

    # --- what it holds ----------------------------------------------------------------------

    def local(self, chain: Sequence[int]) -> int:
        """Units of a chain that the pool has, or will have once a request that runs is done."""
        return self.pool.known_prefix(chain)

    def reach(self, chain: Sequence[int], start: int = 0) -> tuple[int, bool]:
        """How far a chain is held from ``start`` on, in either tier, and whether host memory is
        needed for it."""
        pool, host, from_host = self.pool, self.leases.host, False
        for at in range(start, len(chain)):
            unit = chain[at]
            if pool.known(unit):
                continue
            if not host.has(unit):
                return at, from_host
            from_host = True
        return len(chain), from_host

    def has(self, unit: int) -> bool:
        """Whether a unit is held in either tier."""
        return self.pool.known(unit) or self.leases.host.has(unit)
