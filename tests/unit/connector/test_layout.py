"""Spans over real tensors, laid out by vLLM's own code."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from kvferry.errors import EngineUnsupported
from kvferry.ports.backend import Regions
from kvferry_connectors.vllm.layout import regions_of

BLOCKS = 6
LAYERS = ["a", "b", "c"]


def spec(block_size: int = 16, **changes: Any) -> FullAttentionSpec:
    given: dict[str, Any] = {"num_kv_heads": 2, "head_size": 8, "dtype": torch.float32, **changes}
    return FullAttentionSpec(block_size=block_size, **given)


def engine_config(one: FullAttentionSpec, *, block_outermost: bool) -> KVCacheConfig:
    page, count = one.page_size_bytes, len(LAYERS)
    tensor = KVCacheTensor(
        size=page * count * BLOCKS,
        layers=LAYERS,
        layer_stride=page if block_outermost else page * BLOCKS,
        block_stride=page * count if block_outermost else page,
    )
    return KVCacheConfig(BLOCKS, [tensor], [KVCacheGroupSpec(LAYERS, one)])


def allocated(
    layout: KVCacheLayout, one: FullAttentionSpec, kernel: int | None = None
) -> tuple[dict[str, torch.Tensor], KVCacheConfig]:
    config = engine_config(one, block_outermost=layout.name.startswith("BL"))
    sizes = [kernel] if kernel else None
    caches = allocate_kv_cache(config, torch.device("cpu"), layout, sizes)
    return caches, config


def bytes_of(regions: Regions, block: int) -> list[bytes]:
    return [
        ctypes.string_at(span.address + block * span.stride, span.length) for span in regions.spans
    ]


@pytest.mark.parametrize(
    ("name", "kernel"),
    # vLLM never splits the blocks of a block-outermost layout into kernel blocks.
    [
        ("LBHNC", None),
        ("LBNHC", None),
        ("BLHNC", None),
        ("BLNHC", None),
        ("LBHNC", 8),
        ("LBNHC", 8),
    ],
)
def test_a_block_is_exactly_its_layers_pages(name: str, kernel: int | None) -> None:
    one = spec()
    caches, config = allocated(KVCacheLayout[name], one, kernel)
    regions = regions_of(caches, config)
    assert (regions.blocks, regions.kind, len(regions.spans)) == (BLOCKS, "host", len(LAYERS))
    assert regions.block_bytes == one.page_size_bytes * len(LAYERS)
    before = [bytes_of(regions, block) for block in range(BLOCKS)]
    assert not any(any(piece) for pieces in before for piece in pieces)
    rows = caches["a"].shape[0] // BLOCKS
    for number, layer in enumerate(LAYERS):
        caches[layer][3 * rows : 4 * rows] = float(number + 1)
    for block in range(BLOCKS):
        pieces = bytes_of(regions, block)
        for number, piece in enumerate(pieces):
            value = float(number + 1) if block == 3 else 0.0
            expected = torch.full((one.page_size_bytes // 4,), value).numpy().tobytes()
            assert piece == expected


@pytest.mark.parametrize("name", ["LHBNC", "BHLNC"])
def test_blocks_that_do_not_lie_together_are_refused(name: str) -> None:
    caches, config = allocated(KVCacheLayout.LBHNC, spec())
    heads, tokens, content = caches["a"].shape[1:]
    count, piece = len(LAYERS), tokens * content
    raw = torch.zeros(BLOCKS * heads * count * piece)
    strides = {
        "LHBNC": (piece, BLOCKS * piece, content, 1),
        "BHLNC": (heads * count * piece, count * piece, content, 1),
    }[name]
    step = heads * BLOCKS * piece if name == "LHBNC" else piece
    torn = {
        layer: torch.as_strided(raw, (BLOCKS, heads, tokens, content), strides, number * step)
        for number, layer in enumerate(LAYERS)
    }
    with pytest.raises(EngineUnsupported, match="layer 'a'"):
        regions_of(torn, config)


def test_a_padded_page_moves_whole() -> None:
    one = spec(page_size_padded=4096)
    caches, config = allocated(KVCacheLayout.LBHNC, one)
    regions = regions_of(caches, config)
    assert {span.length for span in regions.spans} == {4096}
    assert {span.stride for span in regions.spans} == {4096}


def test_layers_with_specs_of_their_own() -> None:
    small, large = spec(), spec(head_size=16)
    group = KVCacheGroupSpec(
        ["a", "b"], UniformTypeKVCacheSpecs(16, kv_cache_specs={"a": small, "b": large})
    )
    caches = {
        "a": torch.zeros(BLOCKS, small.page_size_bytes // 4),
        "b": torch.zeros(BLOCKS, large.page_size_bytes // 4),
    }
    regions = regions_of(caches, SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[group]))
    assert [span.length for span in regions.spans] == [small.page_size_bytes, large.page_size_bytes]


def test_layers_that_share_memory_move_once() -> None:
    caches, config = allocated(KVCacheLayout.LBHNC, spec())
    caches["c"] = caches["b"]
    assert len(regions_of(caches, config).spans) == 2


def test_what_does_not_fit_the_pool_is_named() -> None:
    caches, config = allocated(KVCacheLayout.LBHNC, spec())
    with pytest.raises(EngineUnsupported, match="'b'"):
        regions_of({name: t for name, t in caches.items() if name != "b"}, config)
    with pytest.raises(EngineUnsupported, match="5 rows for 6 blocks"):
        regions_of({**caches, "a": caches["a"][:5]}, config)
    narrow = torch.zeros(BLOCKS, 4)
    with pytest.raises(EngineUnsupported, match="hold no page"):
        regions_of({**caches, "a": narrow}, config)
