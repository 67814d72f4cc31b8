"""The host tier's table: what is kept, what gives way, and what never does."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.connector.support import chain

from kvferry.node.export.host import HostTable
from kvferry.node.export.host_runs import HostRun, retained_last


def nobody() -> set[int]:
    return set()


def keep(table: HostTable, name: str, hashes: list[bytes], now_s: float = 0.0) -> list[bytes]:
    """Bring a whole chain into the table; returns what gave way."""
    table.begin(name, "", now_s)
    fresh = [h for h in hashes if table.slot(h) is None]
    taken = table.take(len(fresh), now_s, nobody, sparing=name)
    table.fill(taken.slots, fresh[: len(taken.slots)])
    table.grow(name, hashes[: table.reach(hashes, 0, len(hashes))])
    table.settle(name)
    return taken.lost


def test_a_chain_is_found_from_any_of_its_blocks() -> None:
    table, hashes = HostTable(8), chain("a", 5)
    assert keep(table, "a", hashes) == []
    assert (len(table), table.free, table.runs) == (5, 3, 1)
    assert table.reach(hashes, 0, 5) == 5
    assert table.reach(hashes, 3, 5) == 2
    assert table.reach(chain("b", 5), 0, 5) == 0
    for one in hashes:
        slot = table.slot(one)
        assert slot is not None
        assert table.present(slot) == one


def test_the_least_recently_used_chain_gives_way_from_its_tail() -> None:
    table, a, b = HostTable(8), chain("a", 4), chain("b", 4)
    keep(table, "a", a, 1.0)
    keep(table, "b", b, 2.0)
    assert table.use(a[-1], 3.0)
    assert keep(table, "c", chain("c", 2), 4.0) == [b[3], b[2]]
    assert table.reach(a, 0, 4) == 4
    assert table.reach(b, 0, 4) == 2
    assert not table.use(b[-1], 5.0), "the run ends with another block now"
    assert table.use(b[1], 5.0)


def test_an_order_of_its_own_says_who_gives_way() -> None:
    def newest(runs: Collection[HostRun], now_s: float) -> Iterable[HostRun]:
        return sorted(runs, key=lambda run: -run.used_s)

    table, a, b = HostTable(4, newest), chain("a", 2), chain("b", 2)
    keep(table, "a", a, 1.0)
    keep(table, "b", b, 2.0)
    assert keep(table, "c", chain("c", 1), 3.0) == [b[1]]


def test_what_a_client_asked_for_gives_way_last() -> None:
    table, a, longer = HostTable(6, retained_last), chain("a", 2), chain("a", 3)
    keep(table, "a", a, 1.0)
    table._runs["a"].retain_until_s = 10.0
    keep(table, "longer", longer, 2.0)  # What was asked for the chain goes on.
    keep(table, "b", chain("b", 2), 3.0)
    assert keep(table, "c", chain("c", 2), 4.0) == [chain("b", 2)[1]]
    assert table.reach(longer, 0, 3) == 3
    assert keep(table, "d", chain("d", 3), 11.0)[0] == longer[2], "its time is over"


def test_no_more_slots_are_taken_than_the_budget_allows() -> None:
    table, a, b = HostTable(8), chain("a", 3), chain("b", 3)
    keep(table, "a", a, 1.0)
    keep(table, "b", b, 2.0)
    pinned = table.slot(b[0])
    assert pinned is not None
    table.budget = 4
    assert table.fit(3.0, lambda: {pinned}).lost == [a[2], a[1]]
    assert table.fit(3.0, nobody).lost == []
    assert table.take(1, 4.0, nobody).lost == [a[0]], "though four slots are free"
    table.budget = 0
    assert table.fit(5.0, lambda: {pinned}).lost == [b[2], b[1]]
    assert table.take(1, 6.0, lambda: {pinned}).slots == []


def test_shared_blocks_stay_as_long_as_one_chain_has_them() -> None:
    table, common = HostTable(8), chain("x", 3)
    a, b = chain("a", 5, after=common), chain("b", 5, after=common)
    keep(table, "a", a, 1.0)
    keep(table, "b", b, 2.0)
    assert (len(table), table.free) == (7, 1)
    assert keep(table, "c", chain("c", 3), 3.0) == [a[4], a[3]]
    assert table.reach(b, 0, 5) == 5


def test_a_longer_chain_takes_the_place_of_a_shorter_one() -> None:
    table, longer = HostTable(8), chain("a", 6)
    keep(table, "short", longer[:3], 1.0)
    keep(table, "long", longer, 2.0)
    assert table.runs == 1
    assert len(table) == 6
    assert not table.use(longer[2], 3.0)
    assert table.use(longer[5], 3.0)


def test_what_is_read_or_pinned_stays() -> None:
    table, a, b = HostTable(4), chain("a", 2), chain("b", 2)
    keep(table, "a", a, 1.0)
    keep(table, "b", b, 2.0)
    read, pinned = table.slot(a[1]), table.slot(b[0])
    assert read is not None
    assert pinned is not None
    table.hold([read])
    taken = table.take(4, 3.0, lambda: {pinned})
    assert taken.lost == [b[1]], "only the block behind the pinned one may go"
    table.give_back(taken.slots)
    table.release([read])
    assert table.take(4, 3.0, lambda: {pinned}).lost == [a[1], a[0]]


def test_pins_are_asked_for_only_when_something_has_to_give_way() -> None:
    def never() -> set[int]:
        raise AssertionError("nothing had to give way")

    table = HostTable(4)
    assert len(table.take(4, 0.0, never).slots) == 4


def test_bad_blocks_go_with_all_that_follows_them() -> None:
    table, common = HostTable(8), chain("x", 2)
    a, b = chain("a", 4, after=common), chain("b", 4, after=common)
    keep(table, "a", a, 1.0)
    keep(table, "b", b, 2.0)
    slot = table.slot(a[2])
    assert slot is not None
    table.hold([slot])
    gone = table.discard([a[2]])
    assert sorted(gone.lost) == sorted(a[2:])
    assert table.reach(b, 0, 4) == 4
    assert table.free == 8 - 4 - 1, "a slot that is still read is not free"
    table.release([slot])
    assert table.free == 4
    table.clear()
    assert (len(table), table.free, table.runs) == (0, 8, 0)


class Model(RuleBasedStateMachine):
    """Chains of three families come, go, are read and damaged, in few slots."""

    def __init__(self) -> None:
        super().__init__()
        self.table = HostTable(7)
        self.now = 0.0
        self.count = 0
        self.read: list[int] = []
        self.pinned: set[int] = set()
        trunk = chain("t", 3)
        self.chains = [chain("a", 6, after=trunk), chain("b", 5, after=trunk), chain("c", 8)]

    @rule(family=st.integers(0, 2), length=st.integers(1, 8))
    def keep(self, family: int, length: int) -> None:
        self.now += 1
        self.count += 1
        before = {slot: self.table.present(slot) for slot in (*self.read, *self.pinned)}
        hashes, name = self.chains[family][:length], f"r{self.count}"
        self.table.begin(name, "", self.now)
        there = self.table.reach(hashes, 0, len(hashes))
        self.table.grow(name, hashes[:there])
        fresh = [h for h in hashes[there:] if self.table.slot(h) is None]
        used = self.table.used
        taken = self.table.take(len(fresh), self.now, lambda: set(self.pinned), sparing=name)
        assert self.table.used <= max(used, self.table.budget)
        assert before.keys().isdisjoint(taken.slots), "one that is read or pinned was handed out"
        self.table.fill(taken.slots, fresh[: len(taken.slots)])
        stop = there + self.table.reach(hashes, there, len(hashes))
        self.table.grow(name, hashes[there:stop])
        loose = [h for h in fresh[: len(taken.slots)] if h not in hashes[:stop]]
        self.table.discard(loose)
        self.table.settle(name)
        for slot, held in before.items():
            assert self.table.present(slot) == held

    @rule(family=st.integers(0, 2), at=st.integers(0, 7))
    def hold(self, family: int, at: int) -> None:
        hashes = self.chains[family]
        slot = self.table.slot(hashes[min(at, len(hashes) - 1)])
        if slot is not None:
            self.table.hold([slot])
            self.read.append(slot)

    @precondition(lambda self: self.read)
    @rule()
    def release(self) -> None:
        self.table.release([self.read.pop()])

    @rule(family=st.integers(0, 2), at=st.integers(0, 7))
    def pin(self, family: int, at: int) -> None:
        hashes = self.chains[family]
        slot = self.table.slot(hashes[min(at, len(hashes) - 1)])
        self.pinned = set() if slot is None else {slot}

    @rule(family=st.integers(0, 2), at=st.integers(0, 7))
    def discard(self, family: int, at: int) -> None:
        hashes = self.chains[family]
        self.table.discard([hashes[min(at, len(hashes) - 1)]])
        self.pinned.clear()

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.pinned.clear()

    @rule(budget=st.integers(0, 7))
    def allow(self, budget: int) -> None:
        self.table.budget = budget
        self.table.fit(self.now, lambda: set(self.pinned))
        if self.table.used > budget:
            assert self.read or self.pinned, "nothing stood in the way"

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        table = self.table
        doomed = {slot for slot in self.read if table.present(slot) is None}
        assert table.free + len(table) + len(doomed) == table.slots

    @invariant()
    def runs_are_prefixes_and_own_every_block(self) -> None:
        owned = set()
        for run in self.table._runs.values():
            assert run.hashes
            assert any(run.hashes == c[: len(run.hashes)] for c in self.chains)
            owned.update(run.hashes)
        held = {one for slot in range(self.table.slots) if (one := self.table.present(slot))}
        assert owned == held
        for one in held:
            slot = self.table.slot(one)
            assert slot is not None
            assert self.table.present(slot) == one


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=20), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_it_never_holds_more_than_it_has_slots(lengths: list[int], slots: int) -> None:
    table = HostTable(slots)
    for nth, length in enumerate(lengths):
        keep(table, f"r{nth}", chain(f"s{nth}", length), float(nth))
        assert 0 < len(table) <= slots
        assert len(table) + table.free == slots
