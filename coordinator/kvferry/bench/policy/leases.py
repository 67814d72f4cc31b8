"""Our policy on one engine: offers from the cache, leases by value, a host tier by value.

All decisions are :class:`kvferry.core.retention.Retention`'s; here they are carried out on
simulated memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvferry.bench.policy.engine import Engine
from kvferry.bench.policy.fleet import Job
from kvferry.bench.policy.hosts import ChainHost, Host
from kvferry.core.leases import HOST
from kvferry.core.retention import END, LEASE, TO_HOST, Action, Retention
from kvferry.core.retention_gaps import GapModel
from kvferry.core.retention_keeper import keeper
from kvferry.core.retention_turnover import Turnover
from kvferry.core.retention_value import Chain, Memory, Rules
from kvferry.replay.trace import BLOCK_TOKENS, Turn

LEASE_BUDGET = 0.10
"""Share of an engine's memory that leases may hold: the connector's default."""
FREE_WATERMARK = 0.05
"""Leases end while less than this share is free."""


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
        self._engine = engine
        self._retention = Retention(rules)
        self._shares = shares
        self._turnover = Turnover()
        self._store = ChainHost(host_blocks, self._host_lost)
        self.host: Host | None = self._store if host_blocks else None
        self._leased: dict[str, tuple[int, ...]] = {}
        self._chains: dict[str, tuple[int, ...]] = {}
        """Every chain that the policy may speak of, by its key: its last block as text."""
        self._why = ""

    def advise(self, gaps: GapModel) -> None:
        """What the coordinator learned about sessions."""
        self._retention.gaps = gaps

    def left(self, engine: Engine, job: Job, *, read: bool) -> None:
        turn = job.turn
        if not turn.chain:
            return
        covers = tuple(str(block) for block in turn.chain[:-1] if str(block) in self._chains)
        chain = self._chain(turn, covers)
        self._chains[chain.key] = chain.blocks
        holders = (job.prefill, job.decode)
        kept_by = keeper(turn.session, {name: self._shares.get(name, 0) for name in holders})
        chain.kept_elsewhere = kept_by not in ("", engine.name)
        self._do(self._retention.offered(engine.now_s, chain, self._memory()))
        if read:
            self._retention.read(chain.key, kept_there=chain.kept_elsewhere)

    def read(self, engine: Engine, turn: Turn, blocks: int) -> None:
        for block in reversed(turn.chain[:blocks]):
            if str(block) in self._chains:
                self._retention.read(str(block))
                return

    def room(self, engine: Engine, blocks: int) -> None:
        self._do(self._retention.sweep(engine.now_s, self._memory(blocks)))

    def reused(self, engine: Engine, block: int) -> None:
        """The policy is told when it wants to keep what is no longer there."""

    def _chain(self, turn: Turn, covers: tuple[str, ...]) -> Chain:
        shared = self._engine.shared
        blocks = len(turn.chain)
        saved_ms = shared.links.saved_ms(
            self._engine.name, blocks * BLOCK_TOKENS, blocks * shared.block_bytes
        )
        return Chain(
            key=str(turn.chain[-1]),
            blocks=turn.chain,
            bytes=blocks * shared.block_bytes,
            saved_ms=saved_ms,
            session=turn.session,
            turns=turn.number,
            ended_s=self._engine.now_s,
            covers=covers,
        )

    def _memory(self, needed: int = 0) -> Memory:
        pool, turnover = self._engine.pool, self._turnover
        turnover.took(pool.handed_out - turnover.total)
        return Memory(
            free=pool.free,
            budget=int(pool.capacity * LEASE_BUDGET),
            watermark=int(pool.capacity * FREE_WATERMARK),
            needed=needed,
            handed_out=turnover.total,
            per_s=turnover.per_s(self._engine.now_s),
            host_budget=self._store.capacity,
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
        engine, key = self._engine, action.chain
        engine.shared.figures.ended[f"{action.tier} {action.reason}"] += 1
        if action.tier == HOST:
            self._why = f"host_{action.reason}"
            self._store.drop(key)
        elif key in self._leased:
            engine.pool.give_back(self._leased.pop(key))

    def _copy(self, key: str) -> None:
        engine, blocks = self._engine, self._chains[key]
        if not all(map(engine.pool.ready, blocks)):
            self._do(self._retention.moved(engine.now_s, key, whole=False))
            return
        size = self._store.fresh(blocks) * engine.shared.block_bytes

        def ends() -> None:
            # As on real nodes a copy holds nothing, and what was reused meanwhile is not kept.
            whole = all(map(engine.pool.ready, blocks))
            actions = self._retention.moved(engine.now_s, key, whole=whole)
            if self._retention.host.find(key) is not None:
                engine.shared.copies.came(self._store.put(key, blocks))
            self._do(actions)
            engine.advance()

        engine.shared.clock.at(engine.shared.links.save(engine.name, size, engine.now_s), ends)

    def _host_lost(self, block: int) -> None:
        self._engine.shared.copies.went(block, self._why)
