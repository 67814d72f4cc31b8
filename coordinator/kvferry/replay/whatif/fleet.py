"""The nodes of one space under one policy: what they hold, and what each request finds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from kvferry.core.advising import saved, spared_ms
from kvferry.core.messages import SAVED_UNKNOWN
from kvferry.core.retention_gaps import GapModel, learned
from kvferry.core.retention_keeper import shares
from kvferry.core.state import JOINED, NodeState, SpaceState
from kvferry.replay.nodes.clock import Clock
from kvferry.replay.nodes.leases import Left
from kvferry.replay.whatif.lives import Life
from kvferry.replay.whatif.memory import Engine
from kvferry.replay.whatif.policy import Keeping, Policy, Rates

ADVISE_EVERY_S = 10.0
"""How often nodes hear what was learned about sessions."""
SWEEP_EVERY_S = 0.5
RUNNING_MAX = 8_192
"""Requests that run at a time; of more the oldest are taken to have ended unheard."""
DECODE = "decode"
"""The role of nodes of which ``--extra-decode`` adds some."""


class Running(msgspec.Struct, kw_only=True, eq=False):
    """What a request holds while it runs."""

    engine: Engine
    chain: tuple[int, ...]
    """Of its prompt and its answer, as far as the ledger tells."""
    unnamed: int
    source: str = ""


class Fleet:
    """All nodes of a space.

    Args:
        space: as the ledger's fold knows it; followed as it changes.
        policy: what differs from what nodes say.
        grain: blocks in a unit of memory, one for all nodes: what one reads must have the name
            that its source has for it.
    """

    def __init__(self, space: SpaceState, policy: Policy, grain: int) -> None:
        self.policy = policy
        self.clock = Clock()
        self.engines: dict[str, Engine] = {}
        self.alike: dict[str, str] = {}
        """Extra nodes, and the one that each is like."""
        self._real = space
        self._said: dict[str, Keeping] = {}
        self._host_blocks: dict[str, int] = {}
        self._roles: dict[str, str] = {}
        self._shares: dict[str, int] = {}
        self._running: dict[tuple[str, str], Running] = {}
        self._saved = SAVED_UNKNOWN
        self._grain = grain
        self._gaps: GapModel | None = None
        self._advise_at_s = self._sweep_at_s = 0.0
        self.short = 0
        """Requests for which there was no room: they would have waited."""
        self.view = SpaceState(
            nodes={},
            rates=Rates(space.rates, policy, self.alike),
            prefill=space.prefill,
            choices=space.choices,
            trials=space.trials,
        )
        """The space as plans under this policy see it."""

    # --- nodes ------------------------------------------------------------------------------

    def joined(self, node: NodeState, said: Keeping) -> None:
        """A node begins with an empty memory."""
        self._said[node.name] = said
        self._begin(node)
        if node.role != DECODE:
            return
        for number in range(1, self.policy.extra_decode + 1):
            name = f"extra-decode-{number}"
            if name not in self.engines:
                self.alike[name] = node.name
                self._begin(msgspec.structs.replace(node, name=name))

    def keeps(self, said: Mapping[str, Keeping]) -> None:
        """From now on these nodes keep so, where this policy changes nothing of it."""
        self._said.update(said)
        for name, engine in self.engines.items():
            now = said.get(self.alike.get(name, name))
            if now is not None:
                block_bytes = self.view.nodes[name].block_bytes
                engine.keep_by(self.policy.keeping(now, block_bytes))

    def gone(self, name: str) -> None:
        """A node is there no more, and what it held neither."""
        self.engines.pop(name, None)
        self.view.nodes.pop(name, None)
        if self._host_blocks.pop(name, None) is not None:
            self._share_out()
        for key in [key for key in self._running if key[0] == name]:
            del self._running[key]

    def _begin(self, node: NodeState) -> None:
        self.gone(node.name)
        said = self._said[self.alike.get(node.name, node.name)]
        keeping = self.policy.keeping(said, node.block_bytes)
        self._host_blocks[node.name], self._roles[node.name] = keeping.host_blocks, node.role
        self._share_out()
        self.view.nodes[node.name] = node
        self.engines[node.name] = Engine(
            node.name,
            block_size=node.block_size,
            block_bytes=node.block_bytes,
            grain=self._grain,
            keeping=keeping,
            clock=self.clock,
            saved_ms=lambda tokens: spared_ms(self._saved, tokens),
            shares=self._shares,
        )
        if node.name in self.alike:
            self._alias_costs(node.name)
        if self._gaps is not None:
            self.engines[node.name].leases.advise(self._gaps)

    def _share_out(self) -> None:
        """Of the nodes that hold a session one keeps it in host memory: which, all know alike."""
        self._shares.clear()
        self._shares.update(shares(self._host_blocks, self._roles))

    def _alias_costs(self, name: str) -> None:
        """An extra node computes as fast as the one it is like."""
        like = self._real.prefill.get(self.alike[name])
        if like is not None:
            self.view.prefill = {**self._real.prefill, name: like}

    @property
    def weighs(self) -> bool:
        """Whether moving is weighed against computing at this point of the ledger."""
        return self._real.weighs(self.policy.weighed)

    def holds(self, node: str, chain: Sequence[int]) -> None:
        """What a node offered already when the ledger's range begins."""
        engine = self.engines.get(node)
        if engine is None:
            return
        if engine.pool.missing(chain) <= engine.pool.free:
            engine.pool.take(chain)
            engine.pool.arrived(chain)
            engine.pool.give_back(chain)

    # --- time -------------------------------------------------------------------------------

    def go_on(self, now_s: float) -> None:
        """It is so late now."""
        self.clock.go_on(now_s)
        if now_s >= self._advise_at_s:
            self._advise_at_s = now_s + ADVISE_EVERY_S
            self._gaps = learned(self._real.sessions, round(now_s * 1_000))
            self._saved = saved(self._real.prefill.values())
            for name in self.alike:
                self._alias_costs(name)
            for engine in self.engines.values():
                engine.leases.advise(self._gaps)
        if now_s >= self._sweep_at_s:
            self._sweep_at_s = now_s + SWEEP_EVERY_S
            for engine in self.engines.values():
                engine.leases.room(0)

    # --- requests ---------------------------------------------------------------------------

    def place(self, node: str, session: str) -> str:
        """Where a request runs that ran on ``node``: extra nodes get their share of sessions."""
        extra = [name for name in self.alike if name in self.engines]
        known = self.engines.get(node)
        state = self.view.nodes.get(node)
        if not extra or known is None or state is None or state.role != DECODE or not session:
            return node
        decode = sum(one.role == DECODE for one in self.view.nodes.values())
        digest = hashlib.blake2b(session.encode(), digest_size=8).digest()
        slot = int.from_bytes(digest, "big") % decode
        return extra[slot] if slot < len(extra) else node

    def admitted(self, life: Life, node: str, source: str) -> None:
        """A request gets memory for its prompt and its answer."""
        engine = self.engines[node]
        chain = life.whole
        ended = life.ended
        output = ended.output_tokens if ended is not None else 0
        tokens = life.prompt_tokens(engine.block_size) + output
        unnamed = max(0, -(-tokens // engine.unit_tokens) - len(chain))
        needed = engine.pool.missing(chain, unnamed)
        engine.leases.room(needed)
        self.short += needed > engine.pool.free
        engine.pool.take(chain, unnamed)
        self._running[node, life.asked.request] = Running(
            engine=engine, chain=chain, unnamed=unnamed, source=source
        )
        if len(self._running) > RUNNING_MAX:
            self._forget(next(iter(self._running)))

    def _forget(self, key: tuple[str, str]) -> None:
        """A request whose end the ledger has lost gives back what it holds."""
        running = self._running.pop(key)
        if self.engines.get(key[0]) is running.engine:
            running.engine.pool.arrived(running.chain)
            running.engine.pool.give_back(running.chain, running.unnamed)

    def ended(self, life: Life, node: str, turn: int) -> None:
        """A request is over, and leaves what it has."""
        running = self._running.pop((node, life.asked.request), None)
        if running is None or self.engines.get(node) is not running.engine:
            return
        engine, chain = running.engine, running.chain
        engine.pool.arrived(chain)
        if chain:
            holders = (node, running.source) if running.source else (node,)
            engine.leases.left(
                Left(
                    chain=chain,
                    session=life.session,
                    turn=turn,
                    holders=holders if not life.awaited else (node,),
                    awaited=life.awaited,
                    retain_s=life.retain_ms / 1_000,
                )
            )
        engine.pool.give_back(chain, running.unnamed)
        if life.ended is not None and life.ended.session_over and life.session:
            engine.leases.session_ended(life.session)

    def read(self, source: str, chain: Sequence[int]) -> None:
        """Another node has read these units from ``source``."""
        engine = self.engines.get(source)
        if engine is not None:
            engine.leases.read(chain)


def joined_nodes(space: SpaceState) -> Mapping[str, NodeState]:
    """The engines that are there."""
    return {n.name: n for n in space.nodes.values() if n.status == JOINED and n.block_size > 0}
