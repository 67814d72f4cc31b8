"""What the policy never does, over random lives of a node with a small pool."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvferry.core.leases import HBM
from kvferry.core.retention import Retention
from kvferry.core.retention_actions import END, LEASE, PRESSURE, RENEW, Action
from kvferry.core.retention_blocks import KeptBlocks
from kvferry.core.retention_value import Chain, Memory, Rules, lease_reuse, value

POOL = 40
BUDGET = 16
WATERMARK = 4


class Engine(RuleBasedStateMachine):
    """A pool whose free blocks are reused oldest first, as vLLM's are, and requests on it."""

    @initialize(lease_s=st.sampled_from([2.0, 20.0]))
    def begin(self, lease_s: float) -> None:
        self.retention = Retention(Rules(lease_ms=int(lease_s * 1000)))
        self.now = 0.0
        self.handed_out = 0
        self.queue = list(range(POOL))
        """Free blocks, the next to be reused first."""
        self.uses: Counter[int] = Counter()
        self.leases: dict[str, tuple[int, ...]] = {}
        self.running: list[list[int]] = []
        self.pinned: frozenset[int] = frozenset()
        self.made = 0
        self.chains: list[Chain] = []

    def memory(self, needed: int = 0) -> Memory:
        return Memory(
            free=len(self.queue),
            budget=BUDGET,
            watermark=WATERMARK,
            needed=needed,
            handed_out=float(self.handed_out),
            per_s=self.handed_out / (self.now + 1.0),
        )

    def take(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            if not self.uses[block]:
                self.queue.remove(block)
            self.uses[block] += 1

    def give(self, blocks: tuple[int, ...]) -> None:
        for block in reversed(blocks):
            self.uses[block] -= 1
            if not self.uses[block]:
                self.queue.append(block)

    def carry_out(
        self, actions: list[Action], memory: Memory, goes_on: frozenset[int] = frozenset()
    ) -> None:
        for action in actions:
            if action.act == LEASE:
                chain = self.retention.find(action.chain)
                assert chain is not None
                before = len(self.queue)
                self.take(chain.blocks)
                self.leases[action.chain] = chain.blocks
                if len(self.queue) < before:
                    assert len(self.queue) >= memory.watermark + memory.needed
            elif action.act == END:
                blocks = self.leases.pop(action.chain)
                assert self.pinned.isdisjoint(frozenset(blocks) - goes_on)
                self.give(blocks)
            else:
                assert action.act == RENEW
                assert action.chain in self.leases

    @rule(size=st.integers(1, 12))
    def request(self, size: int) -> None:
        """A request is admitted if the pool has room, after leases made way."""
        memory = self.memory()
        short = size + WATERMARK - len(self.queue)
        actions = self.retention.room(self.now, short, memory, lambda: self.pinned)
        self.carry_out(actions, memory)
        if len(self.queue) >= size:
            blocks = tuple(self.queue[:size])
            self.handed_out += size
            self.take(blocks)
            self.running.append(list(blocks))

    @rule(
        which=st.integers(0, 9),
        awaited=st.booleans(),
        retain=st.sampled_from([0.0, 0.0, 30.0]),
        covers=st.booleans(),
        twins=st.integers(0, 2),
        session=st.sampled_from(["", "s", "t"]),
    )
    def finish(
        self, which: int, awaited: bool, retain: float, covers: bool, twins: int, session: str
    ) -> None:
        """A request ends and leaves a chain, perhaps on top of one that is leased; of the last
        blocks of that it may have computed some itself, into blocks of its own."""
        if not self.running:
            return
        own = self.running.pop(which % len(self.running))
        self.made += 1
        older = next(iter(self.retention.leases()), None) if covers else None
        prefix = older.blocks if older is not None else ()
        prefix = prefix[: max(0, len(prefix) - min(twins, len(own)))]
        chain = Chain(
            key=f"c{self.made}",
            blocks=(*prefix, *own),
            bytes=len(prefix) + len(own),
            saved_ms=float(1 + self.made % 7),
            session=session,
            ended_s=self.now,
            awaited=awaited,
            retain_until_s=self.now + retain if retain else 0.0,
            covers=(older.key,) if older is not None else (),
        )
        memory = self.memory()
        actions = self.retention.offered(self.now, chain, memory, lambda: self.pinned)
        # What the longer lease keeps may be read on while the shorter one ends.
        goes_on = frozenset(chain.blocks if chain.tier == HBM else ())
        self.carry_out(actions, memory, goes_on)
        self.give(tuple(own))

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 60.0]), needed=st.integers(0, 6))
    def sweep(self, seconds: float, needed: int) -> None:
        self.now += seconds
        memory = self.memory(needed)
        actions = self.retention.sweep(self.now, memory, lambda: self.pinned)
        self.carry_out(actions, memory)
        unread = [b for b in self.leases.values() if self.pinned.isdisjoint(b)]
        if len(self.queue) < WATERMARK + needed:
            # Only blocks that somebody else uses too were left to end.
            assert all(self.uses[i] > 1 for b in unread for i in b)

    @rule(number=st.integers(0, 3))
    def pin(self, number: int) -> None:
        """A peer reads one of the leased chains, or nobody reads."""
        chains = list(self.leases.values())
        self.pinned = frozenset(chains[number % len(chains)] if chains and number else ())

    @rule(number=st.integers(0, 3))
    def read(self, number: int) -> None:
        keys = list(self.leases)
        if keys:
            self.retention.read(keys[number % len(keys)])

    @rule(session=st.sampled_from(["s", "t"]))
    def end_session(self, session: str) -> None:
        memory = self.memory()
        ended = self.retention.session_ended(session, memory, lambda: self.pinned)
        self.carry_out(ended, memory)

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "leases"):
            return
        leased = {block for blocks in self.leases.values() for block in blocks}
        assert {chain.key for chain in self.retention.leases()} == self.leases.keys()
        assert self.retention.leased_blocks == len(leased) <= BUDGET
        assert leased.isdisjoint(self.queue)


TestEngine = Engine.TestCase
TestEngine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)


def test_the_least_valuable_lease_ends_first() -> None:
    retention = Retention()
    memory = Memory(free=100, budget=60, per_s=5.0)
    savings = [5.0, 1.0, 9.0, 3.0, 7.0, 2.0]
    for number, saved in enumerate(savings):
        chain = Chain(
            key=f"c{saved:g}",
            blocks=tuple(range(10 * number, 10 * number + 10)),
            bytes=10,
            saved_ms=saved,
            awaited=True,
        )
        retention.offered(0.0, chain, memory)
    for expected in (["c1"], ["c2", "c3"], ["c5", "c7", "c9"]):
        ended = retention.room(1.0, 10 * len(expected), memory)
        assert [(one.chain, one.reason) for one in ended] == [(c, PRESSURE) for c in expected]


def test_a_lease_is_not_displaced_for_blocks_that_it_shares_with_the_next() -> None:
    retention, memory = Retention(), Memory(free=100, budget=16, per_s=5.0)
    for key, size, saved in (("short", 8, 2.0), ("long", 17, 400.0)):
        chain = Chain(key=key, blocks=tuple(range(size)), bytes=size, saved_ms=saved, awaited=True)
        retention.offered(0.0, chain, memory)
    assert [chain.key for chain in retention.leases()] == ["short"], "17 never fit into 16"
    other = Chain(key="other", blocks=tuple(range(20, 28)), bytes=8, saved_ms=300.0, awaited=True)
    retention.offered(0.0, other, memory)
    longer = Chain(key="longer", blocks=tuple(range(12)), bytes=12, saved_ms=400.0, awaited=True)
    retention.offered(0.0, longer, memory)
    assert retention.leased_blocks <= 16


def test_a_lease_that_is_not_in_the_way_is_spared() -> None:
    kept = KeptBlocks()
    runs = [("cheap", [1]), ("middle", [2, 3, 4]), ("dear", [5, 6])]
    for _, blocks in runs:
        kept.keep(blocks)
    assert kept.fewest(runs, 1, set()) == (["cheap"], 1)
    assert kept.fewest(runs, 3, set()) == (["middle"], 3)
    assert kept.fewest(runs, 5, set()) == (["middle", "dear"], 5)
    assert kept.fewest(runs, 9, {2}) == (["cheap", "dear"], 3)
    assert kept.fewest(runs, 0, set()) == ([], 0)


def test_shared_blocks_are_freed_by_their_last_keeper_only() -> None:
    kept = KeptBlocks()
    runs = [("a", [1, 2]), ("b", [1, 2, 3]), ("c", [9])]
    for _, blocks in runs:
        kept.keep(blocks)
    assert len(kept) == 4
    assert kept.fresh([2, 9, 10]) == 1
    assert kept.fewest(runs, 1, set()) == (["b"], 1)
    assert kept.fewest(runs, 2, set()) == (["a", "b"], 3)
    assert kept.release([1, 2]) == 0
    assert kept.release([1, 2, 3]) == 3
    assert len(kept) == 1


def test_a_chain_that_another_node_has_too_is_worth_less() -> None:
    rules, memory, gaps = Rules(), Memory(free=10, budget=5, per_s=1.0), Retention().gaps
    alone = Chain(key="a", blocks=(1,), bytes=1, saved_ms=8.0, tier=HBM)
    shared = Chain(key="b", blocks=(2,), bytes=1, saved_ms=8.0, tier=HBM, copies=1)
    worth = [
        value(one, lease_reuse(30.0, one, memory, gaps, rules), rules) for one in (alone, shared)
    ]
    assert worth[0] > 0
    assert worth[1] == worth[0] * rules.copy_share
