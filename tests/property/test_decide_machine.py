"""Rival coordinators over one ledger: commands decided on states that lag, nodes that come and go.

Each replica folds the same stream at its own pace and appends decisions only after the last one it
has folded, as the log's expected sequence makes it do.
"""

from __future__ import annotations

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.property.stories import NODES, REPLICAS, SPACE, Node, decision

from kvferry.core.apply import apply_batch
from kvferry.core.commands import Command, Heard, NodeSilent, SetPolicy, TakeLead
from kvferry.core.decide import decide
from kvferry.core.digest import digest
from kvferry.core.envelope import Batch, Position
from kvferry.core.events import COORD, LeaderElected
from kvferry.core.invariants import violations
from kvferry.core.snapshot import decode, encode
from kvferry.core.state import MODES, SUPERSEDED_MAX, SpaceState, State

REPLICA = st.sampled_from(REPLICAS)
NAME = st.sampled_from(NODES)


class Replica:
    """A coordinator's state and how far it has read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State()
        self.read = 0
        self.last_decision = 0

    def catch_up(self, log: list[Batch], to: int) -> None:
        for seq in range(self.read + 1, to + 1):
            batch = log[seq - 1]
            apply_batch(self.state, batch, Position(seq, seq * 10))
            if batch.lane == COORD:
                self.last_decision = seq
        self.read = max(self.read, to)

    @property
    def space(self) -> SpaceState:
        return self.state.space(SPACE)


class Coordinators(RuleBasedStateMachine):
    """What replicas and nodes do, in any order."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[Batch] = []
        self.replicas = {name: Replica(name) for name in REPLICAS}
        self.nodes: dict[str, Node] = {}
        self.past: list[Node] = []
        self.lives = dict.fromkeys(NODES, 0)

    @rule(name=NAME)
    def start(self, name: str) -> None:
        if name in self.nodes:
            self.past.append(self.nodes[name])
            mine = [node for node in self.past if node.name == name]
            if len(mine) > SUPERSEDED_MAX:
                self.past.remove(mine[0])
        self.lives[name] += 1
        self.nodes[name] = Node(name, self.lives[name], self.rng)
        self.log.append(self.nodes[name].join())

    @rule(name=NAME, count=st.integers(1, 5), lost=st.booleans(), twice=st.booleans())
    def act(self, name: str, count: int, lost: bool, twice: bool) -> None:
        node = self.nodes.get(name)
        if node is None:
            return
        batch = node.batch(*(node.act() for _ in range(count)))
        if not lost:
            self.log += [batch] * (1 + twice)

    @rule()
    def a_superseded_process_still_writes(self) -> None:
        if self.past:
            node = self.rng.choice(self.past)
            self.log.append(node.batch(node.act()) if self.rng.random() < 0.5 else node.join())

    @rule(name=REPLICA, share=st.floats(0, 1))
    def read(self, name: str, share: float) -> None:
        replica = self.replicas[name]
        replica.catch_up(self.log, replica.read + round((len(self.log) - replica.read) * share))

    @rule(name=REPLICA)
    def restart_from_snapshot(self, name: str) -> None:
        replica = self.replicas[name]
        replica.state = decode(encode(replica.state))

    @rule(name=REPLICA)
    def take_lead(self, name: str) -> None:
        self.append(name, TakeLead(space=SPACE, replica=name))

    @rule(name=REPLICA, node=NAME)
    def give_up(self, name: str, node: str) -> None:
        known = self.replicas[name].space.nodes.get(node)
        if known is not None:
            self.append(name, silent(node, known.incarnation, known.epoch))

    @rule(name=REPLICA, node=st.sampled_from(("", *NODES)), mode=st.sampled_from(MODES))
    def set_policy(self, name: str, node: str, mode: str) -> None:
        self.append(name, SetPolicy(space=SPACE, node=node, mode=mode))

    def append(self, name: str, command: Command) -> None:
        """Decide and store, unless the log holds a decision that the replica has not folded."""
        replica = self.replicas[name]
        made = decide(replica.state, command, now_ms=replica.read)
        if not made.events:
            return
        last = max((n for n, b in enumerate(self.log, 1) if b.lane == COORD), default=0)
        if last != replica.last_decision:
            return
        events = [event for _, event in made.events]
        first = events[0]
        term = first.term if isinstance(first, LeaderElected) else replica.space.term
        self.log.append(decision(name, term, *events))

    @invariant()
    def states_are_sound(self) -> None:
        for replica in self.replicas.values():
            assert violations(replica.state) == []

    @invariant()
    def equal_positions_have_equal_states(self) -> None:
        one, other = self.replicas.values()
        if one.read == other.read:
            assert digest(one.state) == digest(other.state)

    def teardown(self) -> None:
        """Without more faults everything is known again after each node was heard."""
        if not hasattr(self, "log"):
            return
        replica = self.replicas[REPLICAS[0]]
        replica.catch_up(self.log, len(self.log))
        for node in self.nodes.values():
            # A hole that stays is what the window is for; here the node just begins anew.
            self.log.append(node.join())
            replica.catch_up(self.log, len(self.log))
            for effect in decide(replica.state, heard(node), now_ms=0).effects:
                assert effect.control.verb == "policy"
        for node in self.past:
            verbs = [one.control.verb for one in decide(replica.state, heard(node), 0).effects]
            assert verbs == ["duplicate"]
        offers = replica.space.offers.values()
        truth = {o.offer: o.count for node in self.nodes.values() for o in node.offers.values()}
        assert {offer.offer: offer.count for offer in offers} == truth
        elected = [
            entry.event.term
            for batch in self.log
            for entry in batch.entries
            if isinstance(entry.event, LeaderElected)
        ]
        assert elected == sorted(set(elected))


def silent(node: str, incarnation: str, epoch: int) -> NodeSilent:
    return NodeSilent(space=SPACE, node=node, incarnation=incarnation, epoch=epoch, silent_ms=9_000)


def heard(node: Node) -> Heard:
    return Heard(space=SPACE, node=node.name, incarnation=node.incarnation, epoch=node.epoch)


TestCoordinators = Coordinators.TestCase
