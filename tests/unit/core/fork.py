"""A fork burst on simulated nodes: many requests want one prefix that one node has.

Nodes, links and the ledger's delay are simulated; who pulls from whom and when is the shipped
planner's choice.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable

import msgspec

from kvferry.core.cost import LinkCost, PrefillCost, rate_key
from kvferry.core.inflight import Flow, InFlight
from kvferry.core.planning import Holder, Need, plan_prefix, promised
from kvferry.core.state import NodeState, SpaceState
from kvferry.ids import SHORT_BYTES

STRIDE, BLOCK = 8, 16
HEARD_MS_MAX = 100.0
"""A node tells of what happened ten times a second."""
PIN_MS = 3.0


class Pull(msgspec.Struct):
    """One transfer under way, in bytes that are left."""

    request: str
    source: str
    target: str
    left: float


class Burst:
    """``requests`` requests on ``nodes`` nodes besides the one that holds the prefix.

    Args:
        waits: do as the planner says; else pull at once from the source that it names first.
        link_bytes_per_ms: of each node's link, in and out, shared by what uses it.
        known: the planner knows the links; else it has never seen them.
    """

    def __init__(
        self,
        *,
        nodes: int = 8,
        requests: int = 40,
        tokens: int = 40_000,
        waits: bool = True,
        link_bytes_per_ms: float = 10e6,
        token_bytes: int = 131_072,
        prefill_ms: float = 4_000.0,
        known: bool = True,
        seed: int = 0,
    ) -> None:
        self.rng = random.Random(seed)
        self.waits, self.rate = waits, link_bytes_per_ms
        self.blocks = tokens // BLOCK // STRIDE * STRIDE
        self.size = float(self.blocks * BLOCK * token_bytes)
        names = ["holder", *(f"n{number}" for number in range(nodes))]
        self.space = SpaceState(
            nodes={name: _node(name, BLOCK * token_bytes, self.blocks) for name in names}
        )
        for target in names:
            self.space.prefill[target] = _prefill(tokens, prefill_ms)
            for source in names if known else ():
                key = rate_key(source, target, "tcp")
                self.space.rates[key] = _link(link_bytes_per_ms)
        self.moves = InFlight()
        samples = self.blocks // STRIDE
        self.chain = self.rng.randbytes(SHORT_BYTES * samples)
        self.held_at = {"holder": 0.0}
        self.index = {"holder"}
        self.sent: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        self.recomputed: list[str] = []
        self.asked = 0
        self.waited: dict[str, float] = {}
        self.pulls: list[Pull] = []
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        for number in range(requests):
            target = f"n{number % nodes}"
            at = self.rng.uniform(0.0, 5.0)
            self.later(at, lambda r=f"r{number}", t=target: self.ask(r, t))  # type: ignore[misc]

    def run(self) -> float:
        """Milliseconds until every node that was asked for the prefix has it."""
        while self.events or self.pulls:
            next_end = min((self.left_ms(pull) for pull in self.pulls), default=float("inf"))
            next_at = self.events[0][0] if self.events else float("inf")
            if self.now + next_end <= next_at:
                self.advance(next_end)
                for pull in [pull for pull in self.pulls if pull.left <= 1e-3]:
                    self.arrived(pull)
            else:
                self.advance(next_at - self.now)
                heapq.heappop(self.events)[2]()
        return max(self.held_at.values())

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.events, (self.now + delay_ms, self.order, act))

    def share(self, pull: Pull) -> float:
        out = sum(one.source == pull.source for one in self.pulls)
        into = sum(one.target == pull.target for one in self.pulls)
        return self.rate / max(out, into)

    def left_ms(self, pull: Pull) -> float:
        return pull.left / self.share(pull)

    def advance(self, ms: float) -> None:
        shares = [(pull, self.share(pull)) for pull in self.pulls]
        for pull, share in shares:
            pull.left -= share * ms
        self.now += ms

    def ask(self, request: str, target: str) -> None:
        if target in self.held_at or any(pull.target == target for pull in self.pulls):
            return  # The engine has it, or loads it for another request: it waits for that.
        self.asked += 1
        need = Need(
            target=self.space.nodes[target],
            chain=self.chain,
            stride=STRIDE,
            request=request,
            waited_ms=self.waited.get(request, 0.0),
        )
        holders = [
            Holder(node=self.space.nodes[name], blocks=self.blocks)
            for name in sorted(self.index)
            if name != target
        ]
        planned = plan_prefix(self.space, self.moves, need, holders, now_ms=self.now)
        if self.waits and planned.wait_ms:
            self.moves.wait(target, request, need.upto(), self.now + planned.wait_ms)
            self.waited[request] = self.waited.get(request, 0.0) + planned.wait_ms
            self.later(planned.wait_ms, lambda: self.ask(request, target))
            return
        if not planned.chosen:
            self.recomputed.append(request)
            return
        best = planned.chosen[0]
        if not planned.shared:
            self.moves.promise(promised(need, best, self.now))
        self.later(PIN_MS, lambda: self.begin(request, best.source.node, target))

    def begin(self, request: str, source: str, target: str) -> None:
        if target in self.held_at or any(pull.target == target for pull in self.pulls):
            return
        pull = Pull(request, source, target, self.size)
        self.pulls.append(pull)
        self.sent[source] += 1
        now_out = sum(one.source == source for one in self.pulls)
        self.most_at_once[source] = max(self.most_at_once[source], now_out)
        self.later(self.rng.uniform(0.0, HEARD_MS_MAX), lambda: self.heard_of(pull))

    def heard_of(self, pull: Pull) -> None:
        if pull in self.pulls:
            flow = Flow(
                source=pull.source,
                target=pull.target,
                begun_ms=self.now,
                service_ms=self.size / self.rate,
                blocks=self.blocks,
                size_bytes=int(self.size),
                upto=self.chain[-SHORT_BYTES:],
                request=pull.request,
            )
            self.moves.begin(pull.request, flow)

    def arrived(self, pull: Pull) -> None:
        self.pulls.remove(pull)
        self.held_at[pull.target] = self.now
        self.later(self.rng.uniform(0.0, HEARD_MS_MAX), lambda: self.heard_of_end(pull))

    def heard_of_end(self, pull: Pull) -> None:
        self.moves.end(pull.request)
        self.moves.decline(pull.target, pull.request)
        self.index.add(pull.target)


def _node(name: str, block_bytes: int, blocks: int) -> NodeState:
    return NodeState(
        name=name,
        space="s",
        incarnation=name,
        epoch=1,
        block_size=BLOCK,
        backends=("tcp",),
        blocks=4 * blocks,
        block_bytes=block_bytes,
    )


def _link(bytes_per_ms: float) -> LinkCost:
    cost = LinkCost()
    for size in (1e8, 1e9, 4e9) * 4:
        cost.observe(size, 2.0 + size / bytes_per_ms)
    return cost


def _prefill(tokens: int, whole_ms: float) -> PrefillCost:
    cost = PrefillCost()
    for part in (4, 2, 1) * 6:
        cost.observe(tokens // part, 0, whole_ms / part)
    return cost
