"""Every backend brings the right bytes to the right places, and touches nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from tests.contract.pools import Pool, pattern, snapshot, wrong_bytes

from kvferry.errors import BackendError
from kvferry.ports.backend import Backend, Posted, ReadOutcome, ReadRequest, Verify

Serve = Callable[..., Backend]
WAIT_S = 30.0


def post(
    target: Backend,
    source: Backend,
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
    *,
    transfer: str = "t.1",
    verify: Verify = Verify.FULL,
) -> Posted:
    return target.post(
        ReadRequest(
            transfer=transfer,
            peer=source.describe(),
            grant=b"grant",
            source_blocks=source_blocks,
            target_blocks=target_blocks,
            verify=verify,
            deadline_s=WAIT_S,
        )
    )


def finished(posted: Posted) -> ReadOutcome:
    outcome = posted.wait(WAIT_S)
    assert outcome is not None, "no outcome within the deadline"
    assert posted.poll() == outcome
    return outcome


LAYOUTS = {
    "one span": ([65536], 0),
    "many spans": ([4096] * 24, 0),
    "spans of different and odd sizes, with gaps": ([1, 77, 4099, 640], 13),
    "one byte": ([1], 0),
    "one byte with gaps": ([1], 3),
}
CHOICES = {
    "one block": lambda blocks: ([5], [9]),
    "contiguous": lambda blocks: (list(range(3, 40)), list(range(11, 48))),
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
def test_blocks_arrive_and_nothing_else_changes(serve: Serve, layout: str, choice: str) -> None:
    widths, gap = LAYOUTS[layout]
    # The gaps differ on the two sides: only the blocks' own layout has to be the same.
    source_pool, target_pool = Pool(64, widths, gap), Pool(64, widths, gap * 2)
    source_pool.fill("source")
    source, target = serve(source_pool), serve(target_pool)
    source_blocks, target_blocks = CHOICES[choice](64)
    before, source_before = snapshot(target_pool), snapshot(source_pool)

    outcome = finished(post(target, source, source_blocks, target_blocks))

    assert outcome.error == "", outcome
    assert outcome.bytes == len(source_blocks) * sum(widths)
    assert outcome.verified_blocks == len(source_blocks)
    expected = {t: source_pool.get(s) for s, t in zip(source_blocks, target_blocks, strict=True)}
    assert wrong_bytes(before, target_pool, expected) == ([], False)
    assert snapshot(source_pool) == source_before


def test_thousands_of_blocks(serve: Serve) -> None:
    blocks = 5000
    source_pool, target_pool = Pool(blocks, [512, 1024]), Pool(blocks, [512, 1024])
    source_pool.fill("many")
    source, target = serve(source_pool), serve(target_pool)
    source_blocks = random.Random(3).sample(range(blocks), 4500)
    target_blocks = random.Random(4).sample(range(blocks), 4500)
    before = snapshot(target_pool)

    outcome = finished(post(target, source, source_blocks, target_blocks))

    assert outcome.error == ""
    expected = {
        t: pattern("many", s, 1536) for s, t in zip(source_blocks, target_blocks, strict=True)
    }
    assert wrong_bytes(before, target_pool, expected) == ([], False)


def test_the_comparison_has_teeth() -> None:
    """Negative control: one wrong bit in a block, in another block, or in a gap is seen."""
    pool = Pool(8, [100, 50], gap=4)
    pool.fill("teeth")
    before = snapshot(pool)
    expected = {3: pool.get(3)}
    assert wrong_bytes(before, pool, expected) == ([], False)
    for place, finding in ((3 * 104, ([3], False)), (104, ([], True)), (3 * 104 + 101, ([], True))):
        pool.memory[place] ^= 1
        assert wrong_bytes(before, pool, expected) == finding
        pool.memory[place] ^= 1


@pytest.mark.parametrize(
    ("verify", "least", "most"), [(Verify.OFF, 0, 0), (Verify.SAMPLE, 4, 8), (Verify.FULL, 64, 64)]
)
def test_verification_is_counted(serve: Serve, verify: Verify, least: int, most: int) -> None:
    source_pool, target_pool = Pool(64, [4096]), Pool(64, [4096])
    source_pool.fill("counted")
    source, target = serve(source_pool), serve(target_pool)
    posted = post(target, source, range(64), range(64), verify=verify)
    outcome = finished(posted)
    assert outcome.error == ""
    assert least <= outcome.verified_blocks <= most
    assert target_pool.memory == source_pool.memory


def test_many_reads_between_several_pairs_at_once(serve: Serve) -> None:
    names = ["a", "b", "c"]
    pools = {name: Pool(96, [3000, 5000]) for name in names}
    backends = {name: serve(pools[name]) for name in names}
    for name, pool in pools.items():
        # Blocks below 32 are read by others; each pair writes 16 blocks of its own above.
        for block in range(32):
            pool.put(block, pattern(name, block, pool.block_bytes))
    reads: list[tuple[str, str, int, Posted]] = []
    for taker in names:
        givers = [name for name in names if name != taker]
        for nth, giver in enumerate(givers * 2):
            first = 32 + nth * 16
            sources, targets = range(16), range(first, first + 16)
            posted = post(
                backends[taker], backends[giver], sources, targets, transfer=f"{taker}.{nth}"
            )
            reads.append((taker, giver, first, posted))
    for taker, giver, first, posted in reads:
        assert finished(posted).error == ""
        for nth in range(16):
            assert pools[taker].get(first + nth) == pattern(giver, nth, 8000)
    for name, pool in pools.items():
        assert all(pool.get(block) == pattern(name, block, 8000) for block in range(32))


def test_what_does_not_fit_is_refused_at_once(serve: Serve) -> None:
    source_pool, target_pool = Pool(16, [1000]), Pool(16, [1000])
    source, target = serve(source_pool), serve(target_pool)
    before = snapshot(target_pool)
    for sources, targets in (
        ([0], [16]),
        ([0], [-1]),
        ([0, 1], [2]),
        ([], []),
        ([0, 1], [2, 2]),
        ([-1], [0]),
        ([1 << 32], [0]),
    ):
        with pytest.raises(BackendError):
            post(target, source, sources, targets)
    other = serve(Pool(16, [500, 501]))
    with pytest.raises(BackendError):
        post(other, source, [0], [0])
    with pytest.raises(BackendError):
        target.post(
            ReadRequest(
                transfer="t", peer=b"nonsense", grant=b"", source_blocks=[0], target_blocks=[0]
            )
        )
    assert snapshot(target_pool) == before


def test_abort_after_the_end_gives_the_same_outcome(serve: Serve) -> None:
    source, target = serve(Pool(4, [64])), serve(Pool(4, [64]))
    posted = post(target, source, [1], [2])
    outcome = finished(posted)
    assert posted.abort() == outcome
    assert posted.abort() == outcome
