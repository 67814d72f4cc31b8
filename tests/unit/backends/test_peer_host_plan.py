"""System calls cover exactly the bytes asked for, joined where they are neighbours, and bounded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kvferry.ports.backend import Span
from kvferry_backends.peer_host.plan import PIECES_MAX, Call, calls


def spans(base: int, lengths: Sequence[int], blocks: int, gap: int = 0) -> list[Span]:
    found = []
    for length in lengths:
        found.append(Span(base, length + gap, length))
        base += (length + gap) * blocks
    return found


def by_byte(planned: Sequence[Call]) -> dict[int, int]:
    """Target address to source address, byte by byte; no target byte twice."""
    moved: dict[int, int] = {}
    for call in planned:
        for local, remote, length in zip(call.local, call.remote, call.lengths, strict=True):
            for at in range(length):
                assert local + at not in moved
                moved[local + at] = remote + at
    return moved


def asked(
    target: Sequence[Span], source: Sequence[Span], targets: Sequence[int], sources: Sequence[int]
) -> dict[int, int]:
    return {
        ours.address + t * ours.stride + at: theirs.address + s * theirs.stride + at
        for ours, theirs in zip(target, source, strict=True)
        for t, s in zip(targets, sources, strict=True)
        for at in range(ours.length)
    }


@pytest.mark.parametrize("seed", range(40))
def test_every_byte_once_and_every_bound_kept(seed: int) -> None:
    rng = random.Random(seed)
    blocks = rng.randint(1, 40)
    lengths = [rng.choice([1, 3, 16, 64, 200]) for _ in range(rng.randint(1, 5))]
    target = spans(10_000, lengths, blocks, rng.choice([0, 0, 5]))
    source = spans(9_000_000, lengths, blocks, rng.choice([0, 0, 7]))
    count = rng.randint(1, blocks)
    targets = rng.sample(range(blocks), count)
    sources = rng.sample(range(blocks), count)
    if rng.random() < 0.6:
        targets.sort()
        sources.sort()
    call_bytes = rng.choice([1, 100, 1000, 1 << 20])
    planned = list(calls(target, source, targets, sources, call_bytes))
    moved = by_byte(planned)
    assert moved == asked(target, source, targets, sources)
    for call in planned:
        assert 0 < len(call.lengths) <= PIECES_MAX
        assert call.size <= call_bytes or len(call.lengths) == 1
    # Negative control: another list of blocks is another plan.
    assert moved != asked(target, source, targets, [s + 1 for s in sources])


def test_neighbours_on_both_sides_are_one_piece() -> None:
    both = spans(1000, [64, 64], 100), spans(90_000, [64, 64], 100)
    (call,) = calls(*both, range(10, 30), range(50, 70), 1 << 20)
    assert call.lengths == [20 * 64, 20 * 64]
    (call,) = calls(*both, [1, 2, 3], [1, 2, 9], 1 << 20)
    assert call.lengths == [128, 64, 128, 64]
    (call,) = calls(*both, [1, 2, 3], [9, 5, 1], 1 << 20)
    assert call.lengths == [64] * 6


def test_a_gap_on_either_side_keeps_blocks_apart() -> None:
    dense, gappy = spans(1000, [64], 100), spans(90_000, [64], 100, gap=8)
    for both in ((dense, gappy), (gappy, dense)):
        (call,) = calls(*both, range(5), range(5), 1 << 20)
        assert call.lengths == [64] * 5


def test_few_blocks_of_many_layers_are_one_call() -> None:
    both = spans(1000, [64] * 80, 100), spans(900_000, [64] * 80, 100)
    assert len(list(calls(*both, [3, 7, 9], [1, 2, 30], 1 << 20))) == 1


def test_many_pieces_are_cut_by_their_number_and_long_ones_by_their_bytes() -> None:
    both = spans(1000, [16], 10_000), spans(900_000, [16], 10_000)
    scattered = list(calls(*both, range(0, 10_000, 2), range(0, 10_000, 2), 1 << 30))
    assert [len(call.lengths) for call in scattered] == [PIECES_MAX] * 4 + [5000 - 4 * PIECES_MAX]
    dense = list(calls(*both, range(10_000), range(10_000), 16 * 3000))
    assert [call.size for call in dense] == [48_000, 48_000, 48_000, 16_000]
