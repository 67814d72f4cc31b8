"""One pass over a ledger: decide again as it was decided, and under another policy."""

from __future__ import annotations

import time
from collections import OrderedDict

import msgspec

from kvferry.core.accuracy import Joiner
from kvferry.core.applied import Applied
from kvferry.core.envelope import Batch
from kvferry.core.events import (
    NodeClosed,
    NodeJoined,
    NodeLeft,
    Requested,
    RequestEnded,
    TurnEnded,
)
from kvferry.core.state import SpaceState, State
from kvferry.ids import ROUTER_SPACE, SHORT_BYTES
from kvferry.ports.log import LogPort, Stored
from kvferry.replay.fold import Progress
from kvferry.replay.whatif.again import Redecider
from kvferry.replay.whatif.ahead import Ahead
from kvferry.replay.whatif.choose import Chooser, Found
from kvferry.replay.whatif.figures import Figures
from kvferry.replay.whatif.fleet import Fleet, joined_nodes, units
from kvferry.replay.whatif.fold import Fold
from kvferry.replay.whatif.lives import Life
from kvferry.replay.whatif.policy import Policy, said_by
from kvferry.replay.whatif.tally import Tally

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
        self._again = Redecider(self._fold)
        self._spaces: dict[str, _Space] = {}
        self._policy = policy
        self.figures = Figures()
        self._changes: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._joiners: dict[str, Joiner] = {}
        self.events = self.messages = 0
        self._first_ms = 0
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

    def _not_ahead(self, ahead: Ahead, batch: Batch, asked: Requested) -> None:
        """Decide here about a request that does not say at what position it was decided about."""
        life = ahead.lives.of(batch.space, batch.node, asked.request)
        if life is not None and life.asked is asked and not life.scheduled:
            self._again.decide(life)

    def _applied(self, ahead: Ahead, one: Applied) -> None:
        event = one.entry.event
        if one.space == ROUTER_SPACE:
            if isinstance(event, TurnEnded):
                self._turn(event)
            return
        outcome = self._joiners.setdefault(one.space, Joiner()).see(one.node, event)
        if outcome is not None:
            self.figures.errors.add(outcome)
        if isinstance(event, NodeJoined) and event.block_size > 0:
            self._space(one.space).joined(one.node, event)
        elif isinstance(event, NodeLeft):
            self._space(one.space).gone(event.node)
        elif isinstance(event, NodeClosed):
            self._space(one.space).gone(one.node)
        elif isinstance(event, Requested | RequestEnded) and one.space in self._spaces:
            life = ahead.lives.of(one.space, one.node, event.request)
            if life is not None:
                self._request(ahead, life, event, one.position.stored_ms / 1_000)

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

    def _space(self, name: str) -> _Space:
        known = self._spaces.get(name)
        if known is None:
            known = _Space(self._fold.state.space(name), self._policy)
            self._spaces[name] = known
        return known


class _Space:
    """Both fleets of one space."""

    def __init__(self, space: SpaceState, policy: Policy) -> None:
        self._real = space
        self.base, self.other = Fleet(space, Policy()), Fleet(space, policy)
        self._choosers = Chooser(self.base), Chooser(self.other)
        self._found: dict[tuple[str, str], tuple[Found, Found, int]] = {}
        self.told_keeping = True

    def begin_with(self) -> None:
        """What is known already where the range begins: nodes, and what they offer."""
        space = self._real
        for node in joined_nodes(space).values():
            self.told_keeping = False
            for fleet in (self.base, self.other):
                fleet.joined(node, said_by(node, -1, 0, 0))
        for offer in sorted(space.offers.values(), key=lambda one: one.stored_ms):
            if not offer.base:
                for fleet in (self.base, self.other):
                    fleet.holds(offer.node, offer.hashes)

    def decode_nodes(self) -> int:
        """How many nodes say that they decode."""
        return sum(n.role == "decode" for n in self._real.nodes.values())

    def go_on(self, now_s: float) -> None:
        for fleet in (self.base, self.other):
            fleet.go_on(now_s)

    def joined(self, name: str, event: NodeJoined) -> None:
        node = self._real.nodes.get(name)
        known = self.base.view.nodes.get(name)
        if node is None or (known is not None and known.incarnation == node.incarnation):
            return  # A new epoch of the same process keeps its memory.
        self.told_keeping = self.told_keeping and event.lease_blocks >= 0
        said = said_by(node, event.lease_blocks, event.lease_ms, event.watermark_blocks)
        said = msgspec.structs.replace(said, min_pull_tokens=event.min_pull_tokens)
        for fleet in (self.base, self.other):
            fleet.joined(node, said)

    def gone(self, name: str) -> None:
        for fleet in (self.base, self.other):
            fleet.gone(name)

    def admitted(self, life: Life, figures: Figures) -> None:
        node = self._real.nodes.get(life.node)
        if node is None or node.block_size <= 0:
            figures.unplaced += 1
            return
        base, other = (one.decide(life) for one in self._choosers)
        if base is None or other is None:
            figures.unplaced += 1
            return
        engine = self.base.engines[base.node]
        figures.unit_tokens = max(figures.unit_tokens, engine.unit_tokens)
        figures.unit_bytes = max(figures.unit_bytes, engine.block_bytes)
        chain = units(life.chain[: life.asked.wanted // engine.stride * SHORT_BYTES])
        figures.unnamed += not chain and life.asked.wanted >= engine.stride
        repeated = figures.known.repeated(chain) * engine.unit_tokens
        figures.known.add(units(life.chain))
        self._found[life.node, life.asked.request] = base, other, repeated
        if len(self._found) > CHANGES_MAX:
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
