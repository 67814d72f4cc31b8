"""An engine's memory: what stays findable, what goes first, what counts as free."""

from __future__ import annotations

from kvferry.bench.policy.hosts import LruHost
from kvferry.replay.nodes.host import ChainHost
from kvferry.replay.nodes.pool import BlockPool


def filled(capacity: int, *chains: list[int]) -> tuple[BlockPool, list[int]]:
    """A pool that served these chains one after the other, and what it has lost."""
    lost: list[int] = []
    pool = BlockPool(capacity, lost.append)
    for chain in chains:
        pool.take(chain)
        pool.arrived(chain)
        pool.give_back(chain)
    return pool, lost


def test_what_nobody_holds_is_findable_and_free() -> None:
    pool, lost = filled(6, [1, 2, 3])
    assert (pool.free, pool.used) == (6, 3)
    assert pool.ready_prefix([1, 2, 3, 4]) == 3
    assert lost == []


def test_the_end_of_the_oldest_chain_goes_first() -> None:
    pool, lost = filled(6, [1, 2, 3], [4, 5, 6])
    pool.take([7, 8])
    assert lost == [3, 2]
    assert pool.ready_prefix([1, 2, 3]) == 1
    assert pool.ready_prefix([4, 5, 6]) == 3


def test_a_chain_does_not_displace_its_own_blocks() -> None:
    pool, lost = filled(6, [1, 2, 3], [4, 5, 6])
    pool.take([1, 2, 3, 9], unnamed=1)
    assert lost == [6, 5]
    assert pool.ready_prefix([1, 2, 3, 9]) == 3


def test_held_blocks_stay_and_are_not_free() -> None:
    pool, lost = filled(6, [1, 2, 3], [4, 5, 6])
    pool.hold([1, 2, 3])
    assert pool.free == 3
    assert pool.missing([1, 7, 8], unnamed=1) == 3
    pool.take([7, 8, 9])
    assert sorted(lost) == [4, 5, 6]
    pool.give_back([1, 2, 3])
    assert pool.free == 3


def test_blocks_on_their_way_are_known_but_not_ready() -> None:
    pool, _ = filled(6, [1])
    assert pool.take([1, 2, 3]) == [2, 3]
    assert (pool.ready_prefix([1, 2, 3]), pool.known_prefix([1, 2, 3])) == (1, 3)
    assert pool.arrived([2]) == [2]
    assert pool.ready_prefix([1, 2, 3]) == 2


def test_host_memory_keeps_what_was_last_of_use() -> None:
    lost: list[int] = []
    host = LruHost(2, lost.append)
    host.put(1)
    host.put(2)
    host.touch((1,))
    host.put(3)
    assert lost == [2]
    assert host.has(1)


def test_chains_in_host_memory_share_blocks() -> None:
    lost: list[int] = []
    host = ChainHost(10, lost.append)
    assert host.put("a", (1, 2)) == [1, 2]
    assert host.put("b", (1, 2, 3)) == [3]
    assert host.used == 3
    host.drop("a")
    assert lost == []
    host.drop("b")
    assert sorted(lost) == [1, 2, 3]
