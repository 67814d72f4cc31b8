"""The index that followed every event equals one built from the state, whatever happened."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property import index_model as model
from tests.unit.daemon.support import BLOCK, SPACE, STRIDE, chain, offer

from kvferry.core.apply import apply_batch
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import (
    AnyEvent,
    Evicted,
    Inventory,
    LeaderElected,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    Retained,
)
from kvferry.core.state import State
from kvferry.ids import short_hashes
from kvferry.index.spaces import ResidencyIndex

CHAINS = [chain(f"c{n}", 8 * STRIDE, shared=(n % 5) * STRIDE, root="root") for n in range(6)]


class History:
    """Random facts of three nodes, in order and with their proper sequences."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.state, self.index = State(), ResidencyIndex()
        self.told = set[bytes]()
        """Every sample that the index said was new."""
        self.stream_seq = 0
        self.lives = {name: ["", 0, 0] for name in ("p0", "d0", "d1")}
        self.coord(LeaderElected(term=1, replica="c-0"))

    def apply(
        self, node: str, lane: str, incarnation: str, epoch: int, seq: int, *events: AnyEvent
    ) -> None:
        self.stream_seq += 1
        batch = Batch(
            space=SPACE, node=node, incarnation=incarnation, epoch=epoch, lane=lane, seq=seq,
            entries=tuple(Entry(event=event) for event in events),
        )  # fmt: skip
        position = Position(self.stream_seq, 1_000 + self.stream_seq)
        self.index.follow(self.state, apply_batch(self.state, batch, position))
        self.told |= listed(self.index.fresh.get(SPACE, []))

    def coord(self, event: AnyEvent) -> None:
        self.apply("c-0", "coord", "ffffffffffffffff", 1, self.stream_seq + 1, event)

    def fact(self, node: str, *events: AnyEvent) -> None:
        incarnation, epoch, seq = self.lives[node]
        self.lives[node][2] = int(seq) + len(events)
        self.apply(node, "facts", str(incarnation), int(epoch), int(seq) + 1, *events)

    def join(self, node: str, *, new_life: bool) -> None:
        incarnation, epoch, _ = self.lives[node]
        if new_life or not incarnation:
            incarnation, epoch = f"{self.rng.getrandbits(64):016x}", 0
        self.lives[node] = [incarnation, int(epoch) + 1, 0]
        self.fact(
            node,
            NodeJoined(
                incarnation=str(incarnation), epoch=int(epoch) + 1, address="127.0.0.1:1",
                block_size=BLOCK,
            ),
        )  # fmt: skip

    def retained(self, node: str) -> Retained:
        hashes = self.rng.choice(CHAINS)
        name = f"{self.lives[node][0]}.{self.rng.randint(0, 5)}"
        count = self.rng.randint(1, len(hashes))
        base = self.rng.choice([0, 0, 0, 3, STRIDE, 2 * STRIDE])
        return msgspec.structs.replace(
            offer(
                name,
                hashes[:count],
                rev=self.rng.randint(1, 60),
                tier=self.rng.choice(["hbm", "cache", "host"]),
            ),
            base=base,
            hashes=short_hashes(hashes[base:count], STRIDE),
        )

    def step(self) -> None:
        rng, node = self.rng, self.rng.choice(list(self.lives))
        if not self.lives[node][0]:
            return self.join(node, new_life=True)
        choice = rng.random()
        if choice < 0.55:
            self.fact(node, *(self.retained(node) for _ in range(rng.randint(1, 3))))
        elif choice < 0.8:
            one = self.retained(node)
            self.fact(
                node,
                Evicted(offer=one.offer, rev=one.rev, keep=rng.choice([0, 5, 17]), reason="reuse"),
            )
        elif choice < 0.86:
            self.join(node, new_life=rng.random() < 0.5)
            last = rng.randint(1, 3)
            for part in range(1, last + 1):
                self.fact(
                    node, Inventory(part=part, last=part == last, offers=(self.retained(node),))
                )
        elif choice < 0.9:
            self.fact(node, NodeClosed(incarnation=str(self.lives[node][0])))
        elif choice < 0.95:
            incarnation, epoch, _ = self.lives[node]
            self.coord(NodeLeft(term=1, node=node, incarnation=str(incarnation), epoch=int(epoch)))
        else:
            self.join(node, new_life=True)
        return None


def listed(stretches: list[bytes]) -> set[bytes]:
    return {one for stretch in stretches for one in model.samples(stretch)}


def asked() -> list[bytes]:
    return [short_hashes(one, STRIDE) for one in CHAINS]


def answers(index: ResidencyIndex) -> list[object]:
    space = index.space(SPACE)
    return [space.offers(), space.samples(), *(space.holders(one) for one in asked())]


def right(state: State) -> list[object]:
    """What the state's offers are by the plain model."""
    offers = state.space(SPACE).offers.values()
    return [model.answers(offers, one, STRIDE) for one in asked()]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_followed_equals_rebuilt(seed: int) -> None:
    history = History(seed)
    for _ in range(60):
        history.step()
        followed = answers(history.index)
        assert followed == answers(ResidencyIndex.from_state(history.state))
        by_node = [
            {
                held.node: (held.samples, held.tier)
                for held in history.index.space(SPACE).holders(one)
            }
            for one in asked()
        ]
        assert by_node == right(history.state)
        assert listed(history.index.space(SPACE).stretches()) <= history.told


def test_the_comparison_has_teeth() -> None:
    history = History(1)
    history.join("p0", new_life=True)
    history.fact("p0", offer("p0.1", CHAINS[0]))
    before = answers(history.index)
    assert before[0] == {"p0": frozenset({"p0.1"})}
    history.fact("p0", Evicted(offer="p0.1", rev=2, keep=9, reason="reuse"))
    assert answers(history.index) != before


def test_an_unknown_space_is_empty_and_not_kept() -> None:
    index = ResidencyIndex()
    assert index.space("nowhere").holders(b"12345678") == []
    assert index.space("nowhere") is not index.space("nowhere")
