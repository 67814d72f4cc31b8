"""Every backend brings the right bytes to the right places, and touches nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.contract.conftest import Serve
from tests.contract.kinds import Kind
from tests.contract.pools import Pool, pattern, snapshot, wrong_bytes
from tests.contract.reading import finished, post
from tests.contract.sources import SourceProcess

from kvferry.ports.backend import Verify

LAYOUTS = {
    "one span": ([65536], 0),
    "many spans": ([4096] * 24, 0),
    "one span with gaps": ([8192], 64),
    "spans of different and odd sizes, with gaps": ([1, 77, 4099, 640], 13),
    "one byte": ([1], 0),
    "one byte with gaps": ([1], 3),
}
CHOICES: dict[str, Callable[[int], tuple[list[int], list[int]]]] = {
    "one block": lambda blocks: ([5], [9]),
    "contiguous": lambda blocks: (list(range(3, 40)), list(range(11, 48))),
    "neighbours in pairs": lambda blocks: (
        [3, 4, 20, 21, 8, 9, 30, 31],
        [50, 51, 1, 2, 40, 41, 10, 11],
    ),
    "neighbours here, apart there": lambda blocks: ([3, 13, 23, 33], [7, 8, 9, 10]),
    "apart here, neighbours there": lambda blocks: ([7, 8, 9, 10], [3, 13, 23, 33]),
    "scattered": lambda blocks: (
        random.Random(1).sample(range(blocks), 60),
        random.Random(2).sample(range(blocks), 60),
    ),
    "backwards": lambda blocks: (list(range(20, 0, -1)), list(range(30, 50))),
    "the whole pool": lambda blocks: (list(range(blocks)), list(range(blocks - 1, -1, -1))),
    "one source block twice": lambda blocks: ([7, 7, 8], [1, 5, 3]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("choice", CHOICES)
def test_blocks_arrive_and_nothing_else_changes(
    kind: Kind, serve: Serve, sources: SourceProcess, layout: str, choice: str
) -> None:
    widths, gap = LAYOUTS[layout]
    # The gaps differ on the two sides: only the blocks' own layout has to be the same.
    source = sources.serve(64, widths, gap=gap)
    pool = kind.pool(64, widths, gap * 2)
    target = serve(pool)
    source_blocks, target_blocks = CHOICES[choice](64)
    before, source_before = snapshot(pool), source.digest()

    outcome = finished(post(target, source, source_blocks, target_blocks))

    assert outcome.error == "", outcome
    assert outcome.bytes == len(source_blocks) * sum(widths)
    assert outcome.verified_blocks == (len(source_blocks) if kind.capabilities.digest else 0)
    expected = {
        t: pattern("source", s, sum(widths))
        for s, t in zip(source_blocks, target_blocks, strict=True)
    }
    assert wrong_bytes(before, pool, expected) == ([], False)
    assert source.digest() == source_before
    source.close()


def test_thousands_of_blocks(kind: Kind, serve: Serve, sources: SourceProcess) -> None:
    blocks = 5000
    source = sources.serve(blocks, [512] * 3, "many")
    pool = kind.pool(blocks, [512] * 3)
    target = serve(pool)
    source_blocks = random.Random(3).sample(range(blocks), 4500)
    target_blocks = random.Random(4).sample(range(blocks), 4500)
    before = snapshot(pool)

    outcome = finished(post(target, source, source_blocks, target_blocks))

    assert outcome.error == "", outcome
    expected = {
        t: pattern("many", s, 1536) for s, t in zip(source_blocks, target_blocks, strict=True)
    }
    assert wrong_bytes(before, pool, expected) == ([], False)
    source.close()


@pytest.mark.parametrize("memory", ["host", "tensor"])
def test_the_comparison_has_teeth(memory: str) -> None:
    """Negative control: one wrong bit in a block, in another block, or in a gap is seen."""
    pool = teeth_pool(memory)
    pool.fill("teeth")
    assert pool.get(5) == pattern("teeth", 5, 150)
    before = snapshot(pool)
    expected = {3: pool.get(3)}
    assert wrong_bytes(before, pool, expected) == ([], False)
    for place, finding in ((3 * 104, ([3], False)), (104, ([], True)), (3 * 104 + 101, ([], True))):
        good = pool.read(place, place + 1)
        pool.write(place, bytes([good[0] ^ 1]))
        assert wrong_bytes(before, pool, expected) == finding
        pool.write(place, good)


@pytest.mark.parametrize("memory", ["host", "tensor"])
def test_a_pattern_is_told_from_one_that_was_touched(memory: str) -> None:
    pool = teeth_pool(memory)
    pool.fill("first")
    pool.fill("second", 5)
    assert [pool.get(block) == pattern("second", block, 150) for block in (0, 4, 5)] == [1, 1, 0]
    assert pool.get(7) == pattern("first", 7, 150)
    assert pool.holds("second", 5)
    assert not pool.holds("second", 6)
    start, _ = pool.extents(4)[1]
    pool.write(start + 49, bytes([pool.read(start + 49, start + 50)[0] ^ 1]))
    assert not pool.holds("second", 5)
    assert pool.holds("second", 4)


def teeth_pool(memory: str) -> Pool:
    if memory == "host":
        return Pool(8, [100, 50], gap=4)
    pytest.importorskip("torch")
    from tests.contract.tensor_pools import TensorPool

    return TensorPool(8, [100, 50], gap=4, torch_device="cpu")


@pytest.mark.parametrize(
    ("verify", "least", "most"), [(Verify.OFF, 0, 0), (Verify.SAMPLE, 4, 8), (Verify.FULL, 64, 64)]
)
def test_verification_is_counted(
    kind: Kind, serve: Serve, sources: SourceProcess, verify: Verify, least: int, most: int
) -> None:
    source = sources.serve(64, [4096], "counted")
    pool = kind.pool(64, [4096])
    outcome = finished(post(serve(pool), source, range(64), range(64), verify=verify))
    assert outcome.error == ""
    if kind.capabilities.digest:
        assert least <= outcome.verified_blocks <= most
    else:
        assert outcome.verified_blocks == 0
    assert all(pool.get(block) == pattern("counted", block, 4096) for block in range(64))
    source.close()


def test_a_later_read_sees_what_the_source_wrote_since(
    kind: Kind, serve: Serve, sources: SourceProcess
) -> None:
    """Nothing of a peer's memory is kept from one read to the next."""
    source = sources.serve(4, [4096], "first")
    pool = kind.pool(4, [4096])
    target = serve(pool)
    assert finished(post(target, source, [1], [1])).error == ""
    assert pool.get(1) == pattern("first", 1, 4096)
    sources.ask(do="fill", number=source.number, seed="second")
    assert finished(post(target, source, [1], [1])).error == ""
    assert pool.get(1) == pattern("second", 1, 4096)
    source.close()


def test_abort_after_the_end_gives_the_same_outcome(
    kind: Kind, serve: Serve, sources: SourceProcess
) -> None:
    source = sources.serve(4, [64])
    posted = post(serve(kind.pool(4, [64])), source, [1], [2])
    outcome = finished(posted)
    assert posted.abort() == outcome
    assert posted.abort() == outcome
    source.close()
