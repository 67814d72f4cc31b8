"""Coordinators and routers around decode slots, for the machine that drives them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from kvferry.core.apply import apply_batch
from kvferry.core.decision import Decision
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import COORD
from kvferry.core.slots_messages import Lent
from kvferry.core.slots_state import Slots
from kvferry.core.state import State
from kvferry.ids import ROUTER_SPACE

NAMES = ("t0", "t1")
REPLICAS = ("c-1", "c-2")
ROUTERS = ("r0", "r1")
LEADER = "whoever leads, with all that is stored"
REPLICA, ROUTER, NAME = (st.sampled_from(one) for one in (REPLICAS, ROUTERS, NAMES))
BY = st.sampled_from((LEADER, LEADER, LEADER, *REPLICAS))
LOST = st.sampled_from((False, False, True))
REQUEST = st.sampled_from(("a", "b"))


@dataclass
class Replica:
    """A coordinator's state and how far it has read."""

    state: State = field(default_factory=State)
    read: int = 0

    def catch_up(self, log: list[Batch], to: int) -> None:
        for seq in range(self.read + 1, to + 1):
            apply_batch(self.state, log[seq - 1], Position(seq, seq * 10))
        self.read = max(self.read, to)

    @property
    def slots(self) -> Slots:
        return self.state.space(ROUTER_SPACE).slots


@dataclass
class Router:
    """A process and the leases on which it would act now."""

    name: str
    life: int = 1
    number: int = 0
    believes: dict[Lent, str] = field(default_factory=dict)
    past: list[Lent] = field(default_factory=list)

    @property
    def holder(self) -> str:
        return f"{self.name}.{self.life}"

    def next(self) -> int:
        self.number += 1
        return self.number


def batch(replica: str, term: int, seq: int, made: Decision) -> Batch:
    """A decision as it is stored."""
    return Batch(
        space=ROUTER_SPACE,
        node=replica,
        incarnation=replica,
        epoch=term,
        lane=COORD,
        seq=seq,
        entries=tuple(Entry(event=event) for _, event in made.events),
    )
