from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.peers.support import ManualClock

from kvferry.node.export.leases import LeaseTable


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leases(clock: ManualClock) -> LeaseTable:
    return LeaseTable(10, clock)


def test_the_budget_counts_distinct_blocks(leases: LeaseTable) -> None:
    assert leases.grant("a", range(8), 1000, 1)
    assert leases.grant("b", range(10), 1000, 1)
    assert leases.total == 10
    assert not leases.grant("c", [3, 10], 1000, 9)
    assert leases.grant("c", [3, 4], 1000, 9)
    assert leases.total == 10
    assert len(leases) == 3


def test_ending_frees_what_no_other_lease_covers(leases: LeaseTable, clock: ManualClock) -> None:
    leases.grant("a", [1, 2, 3], 1000, 1)
    leases.grant("b", [2, 3, 4], 1000, 1)
    clock.now_s += 0.5
    ended = leases.end("a", "pressure")
    assert ended is not None
    assert (ended.blocks, ended.freed, ended.held_ms) == ((1, 2, 3), (1,), 500)
    assert leases.end("a", "pressure") is None
    ended = leases.end("b", "expired")
    assert ended is not None
    assert set(ended.freed) == {2, 3, 4}
    assert leases.total == 0
    assert leases.ended_total == {"pressure": 1, "expired": 1}


def test_a_lease_expires_and_renewal_moves_that(leases: LeaseTable, clock: ManualClock) -> None:
    leases.grant("a", [1], 1000, 1)
    leases.grant("b", [2], 2000, 1)
    clock.now_s += 1
    assert leases.expired() == ["a"]
    assert leases.expired(clock.now_s - 1) == []
    assert leases.renew("a", 1500)
    assert leases.expired() == []
    clock.now_s += 1
    assert leases.expired() == ["b"]
    assert not leases.renew("gone", 1)
    assert "b" in leases


def test_a_known_id_is_replaced_as_a_whole_or_kept(leases: LeaseTable) -> None:
    leases.grant("a", range(6), 1000, 1)
    assert leases.grant("a", range(4, 14), 1000, 1)
    assert leases.total == 10
    assert not leases.grant("a", range(20), 1000, 1)
    ended = leases.end("a", "superseded")
    assert ended is not None
    assert ended.blocks == tuple(range(4, 14))


@pytest.mark.parametrize(("blocks", "ttl_ms"), [([], 1000), ([1], 0), ([1], -1)])
def test_an_empty_or_ended_lease_is_not_granted(
    leases: LeaseTable, blocks: list[int], ttl_ms: int
) -> None:
    assert not leases.grant("a", blocks, ttl_ms, 1)
    assert len(leases) == 0


def test_the_least_value_goes_first_and_no_more_than_needed(leases: LeaseTable) -> None:
    leases.grant("dear", [1, 2, 3], 1000, 9)
    leases.grant("cheap", [4], 1000, 1)
    leases.grant("middle", [5, 6, 7], 1000, 5)
    assert leases.victims(1, set()) == ["cheap"]
    assert leases.victims(3, set()) == ["middle"]
    assert leases.victims(4, set()) == ["cheap", "middle"]
    assert leases.victims(99, set()) == ["cheap", "middle", "dear"]
    assert leases.victims(0, set()) == []


def test_a_read_lease_loses_value(leases: LeaseTable) -> None:
    leases.grant("a", [1], 1000, 5)
    leases.grant("b", [2], 1000, 4)
    assert leases.revalue("a", 1)
    assert leases.victims(1, set()) == ["a"]
    assert not leases.revalue("gone", 1)


def test_pinned_leases_are_never_chosen(leases: LeaseTable) -> None:
    leases.grant("a", [1, 2], 1000, 1)
    leases.grant("b", [3, 4], 1000, 2)
    assert leases.victims(1, {2}) == ["b"]
    assert leases.victims(1, {2, 3}) == []


def test_shared_blocks_are_freed_by_their_last_lease_only(leases: LeaseTable) -> None:
    leases.grant("a", [1, 2], 1000, 1)
    leases.grant("b", [1, 2, 3], 1000, 2)
    leases.grant("c", [9], 1000, 3)
    assert leases.victims(1, set()) == ["b"]
    assert leases.victims(2, set()) == ["a", "b"]


_GRANTS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.sets(st.integers(0, 15), min_size=1), st.integers(0, 5)),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(grants=_GRANTS, needed=st.integers(0, 20), pinned=st.sets(st.integers(0, 15)))
def test_victims_free_what_is_needed_whenever_that_is_possible(
    grants: dict[str, tuple[set[int], int]], needed: int, pinned: set[int]
) -> None:
    table = LeaseTable(12, ManualClock())
    granted = {
        name: blocks
        for name, (blocks, value) in grants.items()
        if table.grant(name, sorted(blocks), 1000, value)
    }
    covered = set().union(*granted.values())
    assert table.total == len(covered) <= 12

    victims = table.victims(needed, pinned)
    assert all(not granted[name] & pinned for name in victims)
    may_end = {name for name, blocks in granted.items() if not blocks & pinned}
    possible = covered - set().union(*(granted[n] for n in granted.keys() - may_end))
    freed = [block for name in victims for block in table.end(name, "pressure").freed]
    assert len(freed) == len(set(freed))
    assert len(freed) >= min(needed, len(possible))
    for name in list(granted):
        table.end(name, "cleared")
    assert table.total == 0
