"""Both simulations of one space, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from kvferry.core.events import RequestEnded
from kvferry.core.state import NodeState, SpaceState
from kvferry.ids import sample_stride
from kvferry.replay.whatif.again import prompt_chain
from kvferry.replay.whatif.choose import Chooser, Found
from kvferry.replay.whatif.figures import Figures
from kvferry.replay.whatif.fleet import DECODE, Fleet, joined_nodes
from kvferry.replay.whatif.lives import Life
from kvferry.replay.whatif.naming import Names
from kvferry.replay.whatif.policy import Keeping, Policy, said_by

FOUND_MAX = 100_000
"""Requests under way at a time."""


class Twins:
    """The nodes of one space twice: under the recorded policy and under the other one."""

    def __init__(self, space: SpaceState, policy: Policy, names: Names) -> None:
        self._real, self._names = space, names
        self.base = Fleet(space, policy.recorded, names.grain)
        self.other = Fleet(space, policy, names.grain)
        self._choosers = Chooser(self.base), Chooser(self.other)
        self._found: dict[tuple[str, str], tuple[Found, Found, int]] = {}
        self.told_keeping = True

    def begin_with(self) -> None:
        """What is known already where the range begins: nodes, and what they offer."""
        space = self._real
        for node in joined_nodes(space).values():
            self._begin(node)
        for offer in sorted(space.offers.values(), key=lambda one: one.stored_ms):
            if not offer.base:
                chain = self._names.of(offer.session, offer.hashes, offer.count)
                for fleet in (self.base, self.other):
                    fleet.holds(offer.node, chain)

    def decode_nodes(self) -> int:
        """How many nodes say that they decode."""
        return sum(n.role == DECODE for n in self._real.nodes.values())

    def go_on(self, now_s: float) -> None:
        for fleet in (self.base, self.other):
            fleet.go_on(now_s)

    def joined(self, name: str) -> None:
        node = self._real.nodes.get(name)
        known = self.base.view.nodes.get(name)
        if node is None:
            return
        if known is not None and known.incarnation == node.incarnation:
            # A new epoch of the same process: it keeps its memory.
            for fleet in (self.base, self.other):
                fleet.view.nodes[name] = node
            return
        self._begin(node)

    def _begin(self, node: NodeState) -> None:
        self.told_keeping = self.told_keeping and node.lease_blocks >= 0
        said = said_by(node, self._real.retention_of(node.name))
        for fleet in (self.base, self.other):
            fleet.joined(node, said)

    def keeps(self, said: Mapping[str, Keeping]) -> None:
        """An operator has set how nodes keep."""
        for fleet in (self.base, self.other):
            fleet.keeps(said)

    def gone(self, name: str) -> None:
        for fleet in (self.base, self.other):
            fleet.gone(name)

    def know(self, life: Life) -> None:
        """What a request wanted is looked up, where its end will not tell."""
        node = self._real.nodes.get(life.node)
        if node is not None and node.block_size > 0 and not life.chain:
            life.chain = prompt_chain(life, self._real, node) or b""
            life.blocks = life.asked.wanted if life.chain else 0

    def admitted(self, life: Life, figures: Figures) -> None:
        node = self._real.nodes.get(life.node)
        if node is None or node.block_size <= 0:
            figures.unplaced += 1
            return
        wanted, stride = life.asked.wanted, sample_stride(node.block_size)
        life.prompt = self._names.of(life.session, life.chain, wanted)
        life.whole = self._names.of(life.session, life.chain, life.blocks) or life.prompt
        base, other = (one.decide(life) for one in self._choosers)
        if base is None or other is None:
            figures.unplaced += 1
            return
        engine = self.base.engines[base.node]
        figures.unit_tokens = max(figures.unit_tokens, engine.unit_tokens)
        figures.unit_bytes = max(figures.unit_bytes, engine.block_bytes)
        figures.unnamed += wanted >= stride and len(life.prompt) < wanted // stride
        repeated = figures.known.repeated(life.prompt) * engine.unit_tokens
        figures.known.add(life.whole)
        self._found[life.node, life.asked.request] = base, other, repeated
        if len(self._found) > FOUND_MAX:
            del self._found[next(iter(self._found))]

    def ended(
        self, life: Life, event: RequestEnded, figures: Figures
    ) -> tuple[float, float] | None:
        found = self._found.pop((life.node, event.request), None)
        if found is None:
            return None
        base, other, repeated = found
        session = self._real.sessions.open.get(life.session)
        turn = session.turns if session is not None else 1
        for fleet, one in ((self.base, base), (self.other, other)):
            fleet.ended(life, one.node, turn)
        if not event.prompt_tokens or event.local_tokens + event.pulled_tokens == 0 == (
            event.computed_tokens
        ):
            return None
        return figures.request(_was(life, event), base, other, repeated, event.ttft_ms)


def _was(life: Life, event: RequestEnded) -> Found:
    """What was measured of a request."""
    moved = life.moved
    own = moved is not None and moved.source == life.node
    return Found(
        node=life.node,
        local=event.local_tokens,
        pulled=event.pulled_tokens,
        from_host=event.pulled_tokens if own else 0,
        source=event.source,
        bytes=moved.bytes if moved is not None and not own else 0,
        prompt=event.local_tokens + event.pulled_tokens + event.computed_tokens,
    )
