"""One policy with one budget: the whole trace through a fleet, routed as our router routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from kvferry.bench.policy.decode import DecodeEngine
from kvferry.bench.policy.engine import Engine
from kvferry.bench.policy.figures import Figures
from kvferry.bench.policy.fleet import Job, Shared
from kvferry.bench.policy.keeper import CacheAndHost, CacheOnly, Keeper
from kvferry.bench.policy.leases import Leases
from kvferry.bench.policy.links import Links
from kvferry.bench.policy.moves import Mover
from kvferry.bench.policy.policies import INFINITE, LEASES, LRU_HOST, ONE_WAY, OURS, TTL
from kvferry.bench.policy.prefill import PrefillEngine
from kvferry.bench.policy.shapes import Shape
from kvferry.bench.policy.sizes import Sizes
from kvferry.bench.policy.ttl import FixedPins
from kvferry.core.retention_gaps import SessionGaps, learned
from kvferry.core.retention_keeper import shares
from kvferry.core.retention_value import Rules
from kvferry.replay.nodes.pool import BoundlessPool
from kvferry.replay.trace import Turn

DECODE_SLACK = 8
"""How many more requests in flight than the idlest a session's own decode engine may have: the
router's default. A prefill engine may have none."""
SWEEP_EVERY_S = 0.5
ADVISE_EVERY_S = 10.0
"""How often nodes hear what was learned about sessions."""

AnyEngine = TypeVar("AnyEngine", bound=Engine)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    policy: str
    shape: Shape
    prefill: int
    decode: int
    sizes: Sizes
    ttl_s: float
    rules: Rules


class Run:
    """A fleet under one policy."""

    def __init__(self, plan: Plan, turns: Sequence[Turn]) -> None:
        self._plan = plan
        self._turns = turns
        self.shared = Shared(shape=plan.shape, links=Links(plan.shape))
        self._mover = Mover(self.shared)
        self._next: list[list[Turn]] = [[] for _ in turns]
        self._where: dict[int, tuple[str, str]] = {}
        self._gaps = SessionGaps()
        self._advised_s = 0.0
        self._left = len(turns)
        self._leases: list[Leases] = []
        self._prefill: dict[str, PrefillEngine] = {}
        self._decode: dict[str, DecodeEngine] = {}
        self._build()
        for turn in turns:
            if turn.parent is None:
                self.shared.clock.at(turn.at_s, partial(self._send, turn))
            else:
                self._next[turn.parent].append(turn)
        if self._leases:
            self.shared.clock.at(SWEEP_EVERY_S, self._sweep)

    @property
    def engines(self) -> list[Engine]:
        return [*self._prefill.values(), *self._decode.values()]

    def go(self, ended: Callable[[], None] = lambda: None) -> Figures:
        """Until every answer is complete; ``ended`` is called at each."""
        self._ended = ended
        self.shared.clock.run()
        return self.shared.figures

    def _build(self) -> None:
        plan, shared = self._plan, self.shared
        comes_back = plan.policy not in (ONE_WAY, INFINITE)
        for number in range(1, plan.prefill + 1):
            prefill = PrefillEngine(
                f"p{number}",
                shared,
                plan.sizes.hbm,
                self._mover if comes_back else None,
                self._prefilled,
            )
            self._prefill[prefill.name] = prefill
        for number in range(1, plan.decode + 1):
            decode = DecodeEngine(
                f"d{number}", shared, plan.sizes.hbm, self._prefill, self._answered
            )
            self._decode[decode.name] = decode
        for pool in (self._prefill.values(), self._decode.values()):
            boundless = BoundlessPool()
            for engine in pool:
                engine.keeper = self._keeper(engine)
                if plan.policy == INFINITE:
                    engine.pool = boundless
        self._mover.engines = self.engines

    def _keeper(self, engine: Engine) -> Keeper:
        plan = self._plan
        if plan.policy in (OURS, LEASES):
            host = {one.name: plan.sizes.host for one in self.engines}
            roles = {one.name: one.role for one in self.engines}
            ours = Leases(engine, plan.sizes.host, plan.rules, shares(host, roles))
            self._leases.append(ours)
            return ours
        if plan.policy == LRU_HOST and plan.sizes.host:
            return CacheAndHost(engine, plan.sizes.host)
        if plan.policy == TTL and engine.role == "decode":
            return FixedPins(plan.ttl_s)
        return CacheOnly()

    # --- the router -------------------------------------------------------------------------

    def _send(self, turn: Turn) -> None:
        job = Job(turn=turn, sent_s=self.shared.clock.now_s)
        self.shared.figures.sent_late_s += job.sent_s - turn.at_s
        engine = _pick(self._prefill, self._known(turn)[0], 0)
        job.prefill = engine.name
        engine.submit(job)

    def _prefilled(self, job: Job) -> None:
        engine = _pick(self._decode, self._known(job.turn)[1], DECODE_SLACK)
        job.decode = engine.name
        engine.submit(job)

    def _answered(self, job: Job) -> None:
        turn, now_s = job.turn, self.shared.clock.now_s
        self._where[turn.index] = job.prefill, job.decode
        self.shared.figures.last_end_s = now_s
        self._left -= 1
        for following in self._next[turn.index]:
            due_s = max(following.at_s, now_s + self._think_s(turn, following))
            self.shared.clock.at(due_s, partial(self._send, following))
        self._gaps.turn(
            turn.session, str(turn.index), int(job.sent_s * 1e3), int(now_s * 1e3), turn.tokens
        )
        self._ended()

    def _known(self, turn: Turn) -> tuple[str, str]:
        """Where the session's last turn was."""
        return self._where[turn.parent] if turn.parent is not None else ("", "")

    def _think_s(self, turn: Turn, following: Turn) -> float:
        """Time between an answer and the next turn when the trace was taken, as far as it can be
        known: the trace says when turns came, not when they were answered."""
        shape = self._plan.shape
        answered_s = shape.prefill_s(turn.tokens, 0) + turn.answer * shape.step_s
        return max(0.0, following.at_s - turn.at_s - answered_s)

    # --- what the coordinator does ----------------------------------------------------------

    def _sweep(self) -> None:
        now_s = self.shared.clock.now_s
        if now_s - self._advised_s >= ADVISE_EVERY_S:
            self._advised_s = now_s
            model = learned(self._gaps, int(now_s * 1e3))
            for one in self._leases:
                one.advise(model)
        for engine in self.engines:
            engine.keeper.room(engine, 0)
        if self._left:
            self.shared.clock.at(now_s + SWEEP_EVERY_S, self._sweep)


def _pick(pool: Mapping[str, AnyEngine], prefer: str, slack: int) -> AnyEngine:
    """The router's rule: the session's own engine unless it is busier than the idlest one."""
    idlest = min(pool.values(), key=lambda engine: (engine.in_flight, engine.served))
    own = pool.get(prefer)
    engine = own if own is not None and own.in_flight <= idlest.in_flight + slack else idlest
    engine.in_flight += 1
    engine.served += 1
    return engine
