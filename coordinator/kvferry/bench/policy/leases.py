"""Our policy on one engine of a trace study: :mod:`kvferry.replay.nodes.leases` as a keeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvferry.bench.policy.engine import Engine
from kvferry.bench.policy.fleet import Job
from kvferry.bench.policy.hosts import Host
from kvferry.core.retention_gaps import GapModel
from kvferry.core.retention_settings import FREE_WATERMARK, LEASE_BUDGET
from kvferry.core.retention_value import Rules
from kvferry.replay.nodes.leases import ChainLeases, Left, Limits
from kvferry.replay.nodes.pool import BlockPool
from kvferry.replay.trace import BLOCK_TOKENS, Turn


class Leases:
    """A :class:`~kvferry.bench.policy.keeper.Keeper`.

    Args:
        engine: whose memory it is.
        host_blocks: size of the engine's host tier; 0 for none.
        rules: what an operator may set.
        shares: how much each engine is to keep, by name.
    """

    def __init__(
        self, engine: Engine, host_blocks: int, rules: Rules, shares: Mapping[str, int]
    ) -> None:
        self._chains = ChainLeases(
            _Place(engine),
            host_blocks=host_blocks,
            limits=Limits(
                rules=rules,
                budget=int(engine.pool.capacity * LEASE_BUDGET),
                watermark=int(engine.pool.capacity * FREE_WATERMARK),
            ),
            shares=shares,
        )
        self.host: Host | None = self._chains.host if host_blocks else None

    def advise(self, gaps: GapModel) -> None:
        """What the coordinator learned about sessions."""
        self._chains.advise(gaps)

    def left(self, engine: Engine, job: Job, *, read: bool) -> None:
        turn = job.turn
        if not turn.chain:
            return
        self._chains.left(
            Left(
                chain=turn.chain,
                session=turn.session,
                turn=turn.number,
                holders=(job.prefill, job.decode),
                read=read,
            )
        )

    def read(self, engine: Engine, turn: Turn, blocks: int) -> None:
        self._chains.read(turn.chain[:blocks])

    def room(self, engine: Engine, blocks: int) -> None:
        self._chains.room(blocks)

    def reused(self, engine: Engine, block: int) -> None:
        """The policy is told when it wants to keep what is no longer there."""


class _Place:
    """An engine as its leases see it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name

    @property
    def pool(self) -> BlockPool:
        return self._engine.pool

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    @property
    def block_bytes(self) -> int:
        return self._engine.shared.block_bytes

    def saved_ms(self, blocks: int) -> float:
        links = self._engine.shared.links
        return links.saved_ms(self.name, blocks * BLOCK_TOKENS, blocks * self.block_bytes)

    def save(self, size: int, then: Callable[[], None]) -> None:
        shared = self._engine.shared

        def ends() -> None:
            then()
            self._engine.advance()

        shared.clock.at(shared.links.save(self.name, size, self.now_s), ends)

    def host_came(self, blocks: Sequence[int]) -> None:
        self._engine.shared.copies.came(blocks)

    def host_lost(self, block: int, reason: str) -> None:
        self._engine.shared.copies.went(block, f"host_{reason}")

    def ended(self, tier: str, reason: str) -> None:
        self._engine.shared.figures.ended[f"{tier} {reason}"] += 1
