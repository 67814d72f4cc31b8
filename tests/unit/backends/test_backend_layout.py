"""Blocks as memory: runs, joined pieces, and regions that are refused."""

from __future__ import annotations

import ctypes
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.pools import Pool

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span
from kvferry_backends.layout import HostPool, check_regions, runs


@given(st.lists(st.integers(0, 40), max_size=60))
def test_runs_spell_the_blocks_again(blocks: list[int]) -> None:
    found = runs(blocks)
    assert [first + n for first, count in found for n in range(count)] == blocks
    assert all(left[0] + left[1] != right[0] for left, right in itertools.pairwise(found))


def test_consecutive_blocks_become_one_piece_per_span() -> None:
    pool = HostPool(Pool(16, [10, 20]).regions)
    assert pool.extents([3, 4, 5, 9])[1] == [30, 10, 60, 20]


def test_blocks_with_gaps_stay_apart() -> None:
    pool = HostPool(Pool(16, [10, 20], gap=2).regions)
    assert pool.extents([3, 4])[1] == [10, 10, 20, 20]


def test_pieces_are_the_memory_itself() -> None:
    memory = Pool(4, [3, 2], gap=1)
    memory.fill("views")
    pool = HostPool(memory.regions)
    assert b"".join(pool.block(2)) == memory.get(2)
    pool.block(2)[1][0] ^= 0xFF
    assert b"".join(pool.block(2)) == memory.get(2)
    with pytest.raises(ValueError, match="assignment"):
        pool.block(1)[0][:] = b"too much"


@given(
    st.lists(st.integers(0, 15), max_size=20),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(0, 2),
)
def test_extents_spell_bytes_span_by_span(blocks: list[int], widths: list[int], gap: int) -> None:
    memory = Pool(16, widths, gap)
    memory.fill("by address")
    pool = HostPool(memory.regions)
    addresses, lengths = pool.extents(blocks)
    found = [ctypes.string_at(*extent) for extent in zip(addresses, lengths, strict=True)]
    spans = zip(*(pool.block(block) for block in blocks), strict=True)
    assert b"".join(found) == b"".join(bytes(view) for span in spans for view in span)


@pytest.mark.parametrize("blocks", [[16], [-1], [0, 99]])
def test_no_address_outside_the_pool_is_given(blocks: list[int]) -> None:
    with pytest.raises(BackendError, match="pool of 16"):
        HostPool(Pool(16, [8]).regions).extents(blocks)


@pytest.mark.parametrize(
    ("regions", "word"),
    [
        (Regions(spans=(), blocks=4), "0 spans"),
        (Regions(spans=(Span(4096, 8, 8),), blocks=0), "0 blocks"),
        (Regions(spans=(Span(4096, 8, 9),), blocks=2), "overlap"),
        (Regions(spans=(Span(0, 8, 8),), blocks=2), "0x0"),
        (Regions(spans=(Span(4096, 8, 0),), blocks=2), "0 bytes"),
    ],
)
def test_regions_that_hold_no_blocks_are_refused(regions: Regions, word: str) -> None:
    with pytest.raises(BackendError, match=word):
        check_regions(regions)


def test_device_memory_is_not_mapped() -> None:
    with pytest.raises(BackendError, match="cuda"):
        HostPool(Regions(spans=(Span(4096, 8, 8),), blocks=2, kind="cuda"))
