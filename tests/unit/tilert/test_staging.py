"""Staging memory: a range has one owner, and what happens where that is not honoured."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvferry_connectors.tilert.arena import ALIGN_BYTES, Arena
from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.staging import StagingPool
from kvferry_connectors.tilert.turns import Turns

SIZE = 16 * ALIGN_BYTES


class Careless(Arena):
    """Hands out what somebody owns: the one shared buffer of TileRT's own connector."""

    def take(self, length: int) -> int | None:
        return 0


def overlaps(held: dict[int, int]) -> bool:
    runs = sorted(held.items())
    return any(a + n > b for (a, n), (b, _) in itertools.pairwise(runs))


steps = st.lists(st.tuples(st.booleans(), st.integers(1, SIZE)), max_size=60)


@given(steps)
def test_ranges_never_overlap_and_nothing_is_lost(moves: list[tuple[bool, int]]) -> None:
    arena, held = Arena(SIZE), dict[int, int]()
    for take, number in moves:
        if take:
            start = arena.take(number)
            if start is not None:
                assert start not in held
                held[start] = number
                assert start + number <= SIZE
        elif held:
            start = sorted(held)[number % len(held)]
            arena.give(start)
            del held[start]
        assert not overlaps(held)
        assert arena.owned == len(held)
    for start in held:
        arena.give(start)
    assert arena.take(SIZE) == 0  # All of it is in one piece again.


def test_the_check_for_overlaps_can_fail() -> None:
    assert overlaps({0: 10, 9: 1})


def test_what_nobody_owns_cannot_be_given_back() -> None:
    arena = Arena(SIZE)
    start = arena.take(10)
    assert start is not None
    arena.give(start)
    with pytest.raises(KeyError):
        arena.give(start)


def staged(pool: StagingPool) -> tuple[bytes, bytes]:
    """Two sends at a time: each writes its own bytes, then both are read."""
    first = pool.reserve(1000)
    first.memory.fill_(1)
    second = pool.reserve(1000)
    second.memory.fill_(2)
    return bytes(first.memory.tolist()), bytes(second.memory.tolist())


def test_a_send_that_waits_is_not_overwritten_by_the_next() -> None:
    assert staged(StagingPool(SIZE, "cpu")) == (b"\1" * 1000, b"\2" * 1000)


def test_without_owners_it_would_be() -> None:
    pool = StagingPool(SIZE, "cpu")
    pool._arena = Careless(SIZE)
    assert staged(pool) == (b"\2" * 1000, b"\2" * 1000)


def test_a_full_pool_refuses_by_name_and_serves_again_once_a_send_is_over() -> None:
    pool = StagingPool(SIZE, "cpu")
    leases = [pool.reserve(SIZE // 2), pool.reserve(SIZE // 2)]
    with pytest.raises(SendRefused, match="2 sends hold") as refused:
        pool.reserve(1)
    assert refused.value.reason == "staging_full"
    leases[0].release()
    leases[0].release()  # Twice is once.
    assert pool.leases == 1
    again = pool.reserve(SIZE // 2)
    assert again.address == leases[0].address
    with pytest.raises(SendRefused, match="staging_bytes"):
        pool.reserve(SIZE + 1)


def test_nothing_is_allocated_before_the_first_send() -> None:
    pool = StagingPool(SIZE, "cpu")
    assert pool.allocated is False
    pool.reserve(1)
    assert (pool.allocated, pool.area.length, pool.area.kind) == (True, SIZE, "host")


def test_memory_that_is_not_there_is_refused_by_name() -> None:
    pool = StagingPool(1 << 62, "cpu")
    with pytest.raises(SendRefused, match="staging_device=cpu") as refused:
        pool.reserve(1000)
    assert refused.value.reason == "staging_unavailable"
    missing = StagingPool(SIZE, "cuda")
    if not torch.cuda.is_available():
        with pytest.raises(SendRefused, match="cuda"):
            missing.reserve(1000)


def test_requests_wait_their_turn() -> None:
    turns = Turns(100, sends_max=3)
    assert turns.take("a", 60)
    assert turns.take("a", 60)  # Asked again, it has its turn already.
    assert not turns.take("b", 60)
    assert turns.take("c", 40)
    turns.give("a")
    turns.give("nobody")
    assert turns.take("b", 60)
    turns.give("b")
    turns.give("c")
    assert turns.held == 0
    assert turns.take("huge", 1000)  # Alone: the pool itself then refuses it.
    assert not turns.take("next", 1)


def test_there_are_only_so_many_turns() -> None:
    turns = Turns(100, sends_max=2)
    assert [turns.take(name, 1) for name in "abc"] == [True, True, False]
