"""Packing: how a transfer is cut, and bytes into a slot and back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.contract.pools import Pool, pattern, snapshot, wrong_bytes

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span
from kvferry_backends.packing.chunks import CHUNK_MIN_BYTES, Chunk, chunk_blocks, chunks
from kvferry_backends.packing.packer import make_packer
from kvferry_backends.packing.ring import ALIGN_BYTES, Ring, make_ring
from kvferry_backends.packing.table import spans_by_width, word_bytes

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
LAYOUTS: dict[str, tuple[list[int], int]] = {
    "layers": ([4096] * 6, 0),
    "odd widths with gaps": ([1, 77, 4099, 640], 13),
    "two widths": ([512, 1024, 512], 0),
    "one byte": ([1], 0),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> tuple[list[int], int]:
    return LAYOUTS[request.param]


def packed(pool: Pool, blocks: Sequence[int]) -> bytes:
    """What a slot with these blocks must hold: span by span, block by block."""
    found = b""
    at = 0
    for width in pool.widths:
        found += b"".join(pool.get(block)[at : at + width] for block in blocks)
        at += width
    return found


def test_bytes_go_into_a_slot_and_back(layout: tuple[list[int], int]) -> None:
    widths, gap = layout
    source, target = Pool(64, widths, gap), Pool(64, widths, gap * 2)
    source.fill("packed")
    before, source_before = snapshot(target), snapshot(source)
    sources = random.Random(1).sample(range(64), 20)
    targets = random.Random(2).sample(range(64), 20)
    ring = make_ring("host", 0, slots=2, slot_bytes=7 * source.block_bytes)
    giver, taker = make_packer(source.regions), make_packer(target.regions)
    given, taken = giver.listed(sources), taker.listed(targets)

    for chunk in chunks(20, 7, ring.slots):
        slot = ring.address(chunk.slot)
        giver.pack(given, chunk.start, chunk.stop, slot)
        assert memory(slot, (chunk.stop - chunk.start) * source.block_bytes) == packed(
            source, sources[chunk.start : chunk.stop]
        )
        taker.unpack(taken, chunk.start, chunk.stop, slot)

    expected = {t: pattern("packed", s, sum(widths)) for s, t in zip(sources, targets, strict=True)}
    assert wrong_bytes(before, target, expected) == ([], False)
    assert snapshot(source) == source_before
    # Negative control: another order of the same blocks is not the same.
    swapped = {targets[0]: expected[targets[1]], targets[1]: expected[targets[0]]}
    if sum(widths) > 1:
        assert wrong_bytes(before, target, {**expected, **swapped})[0] == targets[:2]


def memory(address: int, size: int) -> bytes:
    import ctypes

    return ctypes.string_at(address, size)


def test_a_pool_of_one_block_with_no_stride() -> None:
    pool = Pool(1, [100])
    pool.fill("single")
    span = pool.regions.spans[0]
    regions = Regions(spans=(Span(span.address, 0, span.length),), blocks=1, owner=pool.memory)
    ring = make_ring("host", 0, slots=1, slot_bytes=100)
    packer = make_packer(regions)
    packer.pack(packer.listed([0]), 0, 1, ring.address(0))
    assert memory(ring.address(0), 100) == pool.get(0)


def test_what_cannot_be_packed_is_named() -> None:
    with pytest.raises(BackendError, match="'disk'"):
        make_packer(Regions(spans=(Span(1, 1, 1),), blocks=1, kind="disk"))
    with pytest.raises(BackendError, match="no KV"):
        make_packer(Regions(spans=(), blocks=1))
    with pytest.raises(BackendError, match="lower slots"):
        make_ring("host", 0, slots=1 << 20, slot_bytes=1 << 40)


@pytest.mark.parametrize("total", [1, 2, 7, 64, 1000, 4097])
@pytest.mark.parametrize("blocks", [1, 3, 64, 5000])
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_chunks_cover_every_block_once_in_order(total: int, blocks: int, slots: int) -> None:
    found = list(chunks(total, blocks, slots))
    assert [at for chunk in found for at in range(chunk.start, chunk.stop)] == list(range(total))
    assert all(chunk.stop - chunk.start <= blocks for chunk in found)
    assert [chunk.slot for chunk in found] == [nth % slots for nth in range(len(found))]


def test_chunks_overlap_and_fit() -> None:
    # A long transfer fills its slots; a short one is cut for overlap, but not into crumbs.
    assert chunk_blocks(10_000, MIB, 16 * MIB, 4) == 16
    assert chunk_blocks(64, MIB, 16 * MIB, 4) == 8
    assert chunk_blocks(3, MIB // 4, 16 * MIB, 4) == 3
    assert chunk_blocks(100, MIB // 4, 16 * MIB, 4) * (MIB // 4) >= CHUNK_MIN_BYTES
    assert chunk_blocks(1, 16 * MIB, 16 * MIB, 4) == 1
    with pytest.raises(BackendError, match="raise the size of the slots"):
        chunk_blocks(1, 16 * MIB + 1, 16 * MIB, 4)
    assert list(chunks(5, 2, 2)) == [Chunk(0, 2, 0), Chunk(2, 4, 1), Chunk(4, 5, 0)]


def test_slots_are_whole_pages_and_apart() -> None:
    ring: Ring = make_ring("host", 0, slots=3, slot_bytes=5000)
    assert ring.slot_bytes == 8192
    assert ring.bytes == 3 * 8192
    assert [ring.address(n) - ring.base for n in range(3)] == [0, 8192, 16384]
    assert ring.base % ALIGN_BYTES == 0


def test_the_kernel_is_told_words_that_fit_everything() -> None:
    def regions(*spans: tuple[int, int, int]) -> Regions:
        return Regions(spans=tuple(Span(*span) for span in spans), blocks=4)

    assert word_bytes(regions((4096, 64, 64), (8192, 128, 128))) == 8
    assert word_bytes(regions((4096, 64, 64), (8196, 128, 128))) == 4
    assert word_bytes(regions((4096, 66, 64))) == 2
    assert word_bytes(regions((4096, 64, 63))) == 1
    assert spans_by_width(regions((100, 8, 8), (200, 16, 16), (300, 9, 8))) == {
        8: [100, 8, 0, 300, 9, 24],
        16: [200, 16, 8],
    }


INTERPRETED = """
import json, random, sys
import torch
from tests.contract.pools import Pool
from kvferry_backends.packing.host import HostPacker
from kvferry_backends.packing.kernel import launch
from kvferry_backends.packing.table import spans_by_width, word_bytes

def run(pool, ids, slot, pack):
    for width, table in spans_by_width(pool.regions).items():
        launch(torch.tensor(table), torch.tensor(ids, dtype=torch.int32), slot.data_ptr(),
               width=width, word_bytes=word_bytes(pool.regions), pack=pack)

widths, gap = json.loads(sys.argv[1])
pool, ids = Pool(16, widths, gap), random.Random(1).sample(range(16), 5)
pool.fill("kernel")
slot = torch.zeros(5 * pool.block_bytes, dtype=torch.uint8)
other = torch.zeros_like(slot)
run(pool, ids, slot, True)
packer = HostPacker(pool.regions)
packer.pack(packer.listed(ids), 0, 5, other.data_ptr())
assert torch.equal(slot, other)
ours, theirs = Pool(16, widths, gap * 2), Pool(16, widths, gap * 2)
run(ours, ids, slot, False)
packer = HostPacker(theirs.regions)
packer.unpack(packer.listed(ids), 0, 5, slot.data_ptr())
assert ours.memory == theirs.memory
slot[3] ^= 1
assert not torch.equal(slot, other)
"""


@pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")
def test_the_kernel_does_what_host_packing_does(layout: tuple[list[int], int]) -> None:
    """In triton's interpreter, which needs no GPU; its compiled form is tested on one."""
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, json.dumps(layout)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
