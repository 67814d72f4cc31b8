"""Our policy on one engine: offers from the cache, leases by value, a host tier by value.

All decisions are :class:`kvferry.core.retention.Retention`'s; here they are carried out on
simulated memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from kvferry.core.leases import HOST
from kvferry.core.retention import Retention
from kvferry.core.retention_actions import END, LEASE, TO_HOST, Action
from kvferry.core.retention_gaps import GapModel
from kvferry.core.retention_keeper import keeper
from kvferry.core.retention_turnover import Turnover
from kvferry.core.retention_value import Budgets, Chain, Memory, Rules
from kvferry.replay.nodes.host import ChainHost
from kvferry.replay.nodes.pool import BlockPool


class Engine(Protocol):
    """The simulated engine whose memory it is. Blocks are those of its pool."""

    @property
    def name(self) -> str: ...

    @property
    def pool(self) -> BlockPool: ...

    @property
    def now_s(self) -> float: ...

    @property
    def block_bytes(self) -> int: ...

    def saved_ms(self, blocks: int) -> float:
        """What a turn is thought to be spared that finds so many blocks here."""
        ...

    def save(self, size: int, then: Callable[[], None]) -> None:
        """Copy so many bytes to host memory, and call ``then`` when that has ended."""
        ...

    def host_came(self, blocks: Sequence[int]) -> None:
        """Host memory has these blocks now."""
        ...

    def host_lost(self, block: int, reason: str) -> None:
        """Host memory has this block no longer, because of that."""
        ...

    def ended(self, tier: str, reason: str) -> None:
        """A lease ended."""
        ...


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a request leaves behind."""

    chain: tuple[int, ...]
    """The blocks that others may share; not empty."""
    session: str = ""
    turn: int = 1
    """Number of the session's turn."""
    holders: tuple[str, ...] = ()
    """The nodes that have it, this one among them."""
    awaited: bool = False
    """Another engine is about to read it."""
    read: bool = False
    """Another engine has read it already."""
    retain_s: float = 0.0
    """A client asked for it to be kept so long."""

    @property
    def key(self) -> str:
        """The chain's name: its last block as text."""
        return str(self.chain[-1])


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much an engine keeps, and for how long."""

    rules: Rules
    budget: int
    """Blocks that leases may hold."""
    watermark: int
    """Leases end while fewer are free."""


class ChainLeases:
    """The chains that an engine keeps.

    Args:
        engine: whose memory it is.
        host_blocks: size of the engine's host tier; 0 for none.
        limits: what an operator may set.
        shares: how much each engine is to keep, by name; read whenever that matters.
        chains_max: chains that are remembered, the last ones; None for all.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        host_blocks: int,
        limits: Limits,
        shares: Mapping[str, int],
        chains_max: int | None = None,
    ) -> None:
        self._engine = engine
        self._limits, self._host_budget = limits, host_blocks
        self._retention = Retention(limits.rules)
        self._shares = shares
        self._turnover = Turnover()
        self.host = ChainHost(host_blocks, self._host_lost)
        self._leased: dict[str, tuple[int, ...]] = {}
        self._chains: dict[str, tuple[int, ...]] = {}
        """Every chain that the policy may speak of, by its key."""
        self._chains_max = chains_max
        self._why = ""

    @property
    def leased_blocks(self) -> int:
        """Distinct blocks under lease in the engine's memory."""
        return self._retention.leased_blocks

    def advise(self, gaps: GapModel) -> None:
        """What the coordinator learned about sessions."""
        self._retention.gaps = gaps

    def keep_by(self, limits: Limits, host_blocks: int) -> None:
        """Keep by other limits from now on, in no more of the host tier than it has."""
        self._limits, self._host_budget = limits, min(host_blocks, self.host.capacity)
        self._retention.rule(limits.rules)
        budgets = Budgets(lease_blocks=limits.budget, host_blocks=self._host_budget)
        self._do(self._retention.fit(self._engine.now_s, self._memory(), budgets))

    def left(self, left: Left) -> None:
        """A request ended; its chain is ready, still held, and given back right after."""
        covers = tuple(str(block) for block in left.chain[:-1] if str(block) in self._chains)
        chain = self._chain(left, covers)
        self._chains.pop(chain.key, None)
        self._chains[chain.key] = chain.blocks
        if self._chains_max is not None and len(self._chains) > self._chains_max:
            del self._chains[next(iter(self._chains))]
        kept_by = keeper(left.session, {name: self._shares.get(name, 0) for name in left.holders})
        chain.kept_elsewhere = kept_by not in ("", self._engine.name)
        self._do(self._retention.offered(self._engine.now_s, chain, self._memory()))
        if left.read:
            self._retention.read(chain.key, kept_there=chain.kept_elsewhere)

    def read(self, chain: Sequence[int]) -> None:
        """Another engine has read these blocks."""
        for block in reversed(chain):
            if str(block) in self._chains:
                self._retention.read(str(block))
                return

    def room(self, blocks: int) -> None:
        """A waiting request needs ``blocks`` free ones: let go of what may go."""
        self._do(self._retention.sweep(self._engine.now_s, self._memory(blocks)))

    def session_ended(self, session: str) -> None:
        """The client says that the session is over."""
        self._do(self._retention.session_ended(session, self._memory()))

    def _chain(self, left: Left, covers: tuple[str, ...]) -> Chain:
        engine, blocks = self._engine, len(left.chain)
        return Chain(
            key=left.key,
            blocks=left.chain,
            bytes=blocks * engine.block_bytes,
            saved_ms=engine.saved_ms(blocks),
            session=left.session,
            turns=left.turn,
            ended_s=engine.now_s,
            retain_until_s=engine.now_s + left.retain_s if left.retain_s > 0 else 0.0,
            awaited=left.awaited,
            covers=covers,
        )

    def _memory(self, needed: int = 0) -> Memory:
        pool, turnover = self._engine.pool, self._turnover
        turnover.took(pool.handed_out - turnover.total)
        return Memory(
            free=pool.free,
            budget=self._limits.budget,
            watermark=self._limits.watermark,
            needed=needed,
            handed_out=turnover.total,
            per_s=turnover.per_s(self._engine.now_s),
            host_budget=self._host_budget,
        )

    def _do(self, actions: Iterable[Action]) -> None:
        pool, retention = self._engine.pool, self._retention
        for action in actions:
            key = action.chain
            if action.act == LEASE:
                chain = retention.find(key)
                if chain is None or not all(map(pool.ready, chain.blocks)):
                    retention.lost(key, self._memory())
                else:
                    pool.hold(chain.blocks)
                    self._leased[key] = chain.blocks
            elif action.act == END:
                self._end(action)
            elif action.act == TO_HOST:
                self._copy(key)

    def _end(self, action: Action) -> None:
        key = action.chain
        self._engine.ended(action.tier, action.reason)
        if action.tier == HOST:
            self._why = action.reason
            self.host.drop(key)
        elif key in self._leased:
            self._engine.pool.give_back(self._leased.pop(key))

    def _copy(self, key: str) -> None:
        engine, blocks = self._engine, self._chains.get(key, ())
        if not blocks or not all(map(engine.pool.ready, blocks)):
            self._do(self._retention.moved(engine.now_s, key, whole=False))
            return

        def ends() -> None:
            # As on real nodes a copy holds nothing, and what was reused meanwhile is not kept.
            whole = all(map(engine.pool.ready, blocks))
            actions = self._retention.moved(engine.now_s, key, whole=whole)
            if self._retention.host.find(key) is not None:
                engine.host_came(self.host.put(key, blocks))
            self._do(actions)

        engine.save(self.host.fresh(blocks) * engine.block_bytes, ends)

    def _host_lost(self, block: int) -> None:
        self._engine.host_lost(block, self._why)
