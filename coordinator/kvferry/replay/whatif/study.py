"""One pass over a ledger: decide again as it was decided, and under another policy."""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import partial

import msgspec

from kvferry.core.accuracy import Joiner
from kvferry.core.applied import Applied
from kvferry.core.envelope import Batch
from kvferry.core.events import (
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PolicySet,
    Requested,
    RequestEnded,
    TurnEnded,
)
from kvferry.core.state import State
from kvferry.ids import ROUTER_SPACE, sample_stride
from kvferry.ports.log import LogPort, Stored
from kvferry.replay.fold import Progress
from kvferry.replay.whatif.again import Redecider
from kvferry.replay.whatif.ahead import Ahead
from kvferry.replay.whatif.figures import Figures
from kvferry.replay.whatif.fleet import joined_nodes
from kvferry.replay.whatif.fold import Fold
from kvferry.replay.whatif.lives import Life
from kvferry.replay.whatif.naming import Names
from kvferry.replay.whatif.order import InOrder
from kvferry.replay.whatif.policy import Policy, said_by
from kvferry.replay.whatif.tally import Tally
from kvferry.replay.whatif.twins import Twins

LOST = "the message of its decision is lost"
CHANGES_MAX = 100_000
"""Requests whose change is kept until a router tells of their turn."""


class Pass(msgspec.Struct, kw_only=True):
    """What a pass came to."""

    tally: Tally
    figures: Figures
    first: int
    last: int
    span_s: float = 0.0
    messages: int = 0
    events: int = 0
    took_s: float = 0.0
    short: tuple[int, int] = (0, 0)
    """Requests without room in the simulated pools, under the recorded and the other policy."""
    nodes: tuple[str, ...] = ()
    decode_nodes: int = 0
    told_keeping: bool = True
    """Every node says how it keeps."""

    @property
    def events_per_s(self) -> float:
        """How fast it went."""
        return self.events / self.took_s if self.took_s > 0 else 0.0


class Study:
    """Folds a range of facts and drives both simulations beside it.

    Args:
        state: as it was before the range.
        policy: the other policy.
    """

    def __init__(self, state: State, policy: Policy) -> None:
        self._fold = Fold(state)
        self._again = Redecider(self._fold, weighed=policy.weighed)
        self._spaces: dict[str, Twins] = {}
        self._policy = policy
        self.figures = Figures()
        self._changes: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._joiners: dict[str, Joiner] = {}
        self.events = self.messages = 0
        self._first_ms = 0
        self._order = InOrder()
        for name, space in state.spaces.items():
            if name != ROUTER_SPACE and joined_nodes(space):
                self._space(name).begin_with()

    @property
    def tally(self) -> Tally:
        """The recorded decisions, decided again."""
        return self._again.tally

    async def run(self, log: LogPort, first: int, last: int, progress: Progress | None) -> Pass:
        """Messages ``first`` to ``last`` of the facts."""
        begun = time.perf_counter()
        ahead = Ahead(log, first, last, progress)
        async for stored, batch in ahead.messages():
            self._message(ahead, stored, batch)
        self._order.release()
        for lives in ahead.lives.due.values():
            self.tally.not_decided[LOST] += len(lives)
        spaces = self._spaces.values()
        nodes = {n for one in self._fold.state.spaces.values() for n in one.nodes}
        return Pass(
            tally=self.tally,
            figures=self.figures,
            first=first,
            last=last,
            span_s=(self._fold.stored_ms - self._first_ms) / 1_000 if self._first_ms else 0.0,
            messages=self.messages,
            events=self.events,
            took_s=time.perf_counter() - begun,
            short=(sum(s.base.short for s in spaces), sum(s.other.short for s in spaces)),
            nodes=tuple(sorted(nodes)),
            decode_nodes=sum(one.decode_nodes() for one in spaces),
            told_keeping=all(one.told_keeping for one in spaces),
        )

    # --- one message ------------------------------------------------------------------------

    def _message(self, ahead: Ahead, stored: Stored, batch: Batch | None) -> None:
        self.messages += 1
        self._first_ms = self._first_ms or stored.stored_ms
        if batch is not None:
            self.events += len(batch.entries)
            for entry in batch.entries:
                if isinstance(entry.event, Requested):
                    self._not_ahead(ahead, batch, entry.event)
        for one in self._fold.take(stored):
            self._applied(ahead, one)
        for life in ahead.lives.due.pop(stored.seq, ()):
            self._again.decide(life)
        self._order.release(stored.stored_ms)

    def _not_ahead(self, ahead: Ahead, batch: Batch, asked: Requested) -> None:
        """Decide here about a request that does not say at what position it was decided about."""
        life = ahead.lives.of(batch.space, batch.node, asked.request)
        if life is not None and life.asked is asked and not life.scheduled:
            self._again.decide(life)

    def _applied(self, ahead: Ahead, one: Applied) -> None:
        event = one.entry.event
        wall_ms, stored_ms = one.entry.wall_ms, one.position.stored_ms
        if one.space == ROUTER_SPACE:
            if isinstance(event, TurnEnded):
                turn = event
                self._order.add(wall_ms, stored_ms, lambda now_s: self._turn(turn))
            return
        outcome = self._joiners.setdefault(one.space, Joiner()).see(one.node, event)
        if outcome is not None:
            self.figures.errors.add(outcome)
        # Nodes come and go in the same order as requests: what ran before a node went is in it yet.
        if isinstance(event, NodeJoined) and event.block_size > 0:
            come = partial(self._space(one.space).joined, one.node)
            self._order.add(wall_ms, stored_ms, lambda now_s: come())
        elif isinstance(event, NodeLeft | NodeClosed):
            node = event.node if isinstance(event, NodeLeft) else one.node
            self._order.add(wall_ms, stored_ms, lambda now_s: self._gone(one.space, node))
        elif isinstance(event, PolicySet) and event.keeps and one.space in self._spaces:
            self._keeps(one.space, wall_ms, stored_ms)
        elif isinstance(event, Requested | RequestEnded) and one.space in self._spaces:
            life = ahead.lives.of(one.space, one.node, event.request)
            if life is not None:
                if isinstance(event, Requested):
                    self._spaces[one.space].know(life)
                act = partial(self._request, ahead, life, event)
                self._order.add(wall_ms, stored_ms, act)

    def _request(
        self, ahead: Ahead, life: Life, event: Requested | RequestEnded, now_s: float
    ) -> None:
        space = self._spaces[life.key[0]]
        space.go_on(now_s)
        if isinstance(event, Requested):
            space.admitted(life, self.figures)
            return
        changed = space.ended(life, event, self.figures)
        if changed is not None:
            self._changes[event.request] = changed
            if len(self._changes) > CHANGES_MAX:
                self._changes.popitem(last=False)
        ahead.lives.over(life)

    def _turn(self, turn: TurnEnded) -> None:
        parts = [
            self._changes.pop(one, (0.0, 0.0))
            for one in (turn.prefill_request, turn.decode_request)
            if one
        ]
        if parts and turn.ttft_ms > 0:
            moves, computes = zip(*parts, strict=True)
            self.figures.by_turn.add(turn.ttft_ms, sum(moves), sum(computes))

    def _keeps(self, name: str, wall_ms: int, stored_ms: int) -> None:
        """An operator has set how nodes keep: from then on, for those that are there then."""
        space = self._fold.state.space(name)
        said = {
            node.name: said_by(node, space.retention_of(node.name))
            for node in joined_nodes(space).values()
        }
        self._order.add(wall_ms, stored_ms, lambda now_s: self._spaces[name].keeps(said))

    def _gone(self, space: str, node: str) -> None:
        if space in self._spaces:
            self._spaces[space].gone(node)

    def _space(self, name: str) -> Twins:
        known = self._spaces.get(name)
        if known is None:
            space = self._fold.state.space(name)
            engine = next(iter(joined_nodes(space).values()))
            names = Names(engine.blocks, sample_stride(engine.block_size))
            known = self._spaces[name] = Twins(space, self._policy, names)
        return known
