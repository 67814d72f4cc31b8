"""Blocks into a host pool and back, byte for byte."""

from __future__ import annotations

import ctypes
import random

import pytest
from tests.contract.pools import Pool, pattern, snapshot, wrong_bytes

from kvferry.errors import BackendError, ConfigError
from kvferry.ports.backend import Regions, Span
from kvferry_backends.host_tier import memory
from kvferry_backends.host_tier.memory import check_budget, make_pool
from kvferry_backends.host_tier.mover import make_mover
from kvferry_backends.layout import HostPool, check_regions

LAYOUTS = {
    "layers": ([4096] * 4, 0),
    "odd widths with gaps": ([1, 77, 4099, 640], 13),
    "one byte": ([1], 0),
}


@pytest.fixture(params=LAYOUTS)
def engine(request: pytest.FixtureRequest) -> Pool:
    widths, gap = LAYOUTS[request.param]
    return Pool(40, widths, gap)


@pytest.mark.parametrize("together", [True, False])
def test_blocks_go_to_the_host_and_back(engine: Pool, together: bool) -> None:
    pool = make_pool(engine.regions, 20)
    assert [span.length for span in pool.spans] == list(engine.widths)
    mover = make_mover(engine.regions, pool)
    engine.fill("kept")
    blocks = random.Random(1).sample(range(40), 9)
    slots = list(range(5, 14)) if together else random.Random(2).sample(range(20), 9)
    mover.to_host(blocks, slots)
    size = engine.block_bytes
    views = HostPool(pool)
    for block, slot in zip(blocks, slots, strict=True):
        assert b"".join(views.block(slot)) == pattern("kept", block, size)

    engine.fill("overwritten")
    before = snapshot(engine)
    targets = random.Random(3).sample(range(40), 9)
    mover.to_engine(slots, targets, mover.point())
    expected = {t: pattern("kept", b, size) for t, b in zip(targets, blocks, strict=True)}
    assert wrong_bytes(before, engine, expected) == ([], False)
    if size > 1:  # Negative control: another order of the same blocks is not the same.
        swapped = {targets[0]: expected[targets[1]], targets[1]: expected[targets[0]]}
        assert wrong_bytes(before, engine, {**expected, **swapped})[0] == targets[:2]


@pytest.mark.parametrize("widths", [[100, 5000, 7], [64, 64]])
def test_a_pool_that_is_laid_out_block_by_block_has_each_in_one_piece(widths: list[int]) -> None:
    engine, slots = Pool(4, widths).regions, 6
    size = engine.block_bytes
    bytes_of = bytearray(slots * size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(bytes_of))
    laid = Regions(memory.block_by_block(base, engine), slots, "host", owner=bytes_of)
    check_regions(laid)
    views = HostPool(laid)
    for slot in range(slots):
        told = pattern("laid", slot, size)
        for view in views.block(slot):
            view[:], told = told[: len(view)], told[len(view) :]
        assert not told
    for slot in range(slots):
        assert bytes_of[slot * size : (slot + 1) * size] == pattern("laid", slot, size)


def test_a_pool_begins_on_a_page_and_its_spans_do_not_overlap() -> None:
    pool = make_pool(Pool(4, [100, 5000, 7]).regions, 6)
    ends = [span.address + span.stride * pool.blocks for span in pool.spans]
    for span in pool.spans:
        assert span.address % memory.ALIGN_BYTES == 0
        assert span.stride == span.length
    assert all(end <= span.address for end, span in zip(ends, pool.spans[1:], strict=False))


def test_more_than_there_is_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_container_available", lambda: 1000)
    check_budget(1000)
    with pytest.raises(ConfigError, match=r"host_tier_bytes=1001: .* 1000 bytes .* lower it"):
        check_budget(1001)
    monkeypatch.setattr(memory, "_container_available", lambda: None)
    left = memory.available_bytes()
    assert left is not None
    with pytest.raises(ConfigError, match="host_tier_bytes"):
        check_budget(left * 2)
    monkeypatch.setattr(memory, "_host_available", lambda: None)
    check_budget(1 << 60)  # Where nobody tells, the allocation will.


def test_other_memory_has_no_host_tier() -> None:
    odd = Regions((Span(4096, 64, 64),), 2, "rocm")
    with pytest.raises(BackendError, match="rocm"):
        make_mover(odd, odd)
