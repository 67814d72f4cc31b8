"""Rows out of an engine's cache into staging, and which caches are refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.tilert.caches import EngineCache

from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.extract import Cache, Extraction
from kvferry_connectors.tilert.fitting import fit, judge
from kvferry_connectors.tilert.layout import Plane, Stage
from kvferry_connectors.tilert.profiles import BF16, FP8_DS_MLA, Profile, RowFormat, find

SMALL = Profile(name="small", layers=3, version=900)
SPARSE = Profile(name="sparse", layers=5, version=901, indexer_layers=(0, 1, 4), draft_layer=True)
PLAIN = Profile(name="plain", layers=2, version=902, indexer=False)


def staged(cache: EngineCache, ids: list[int], tokens: int, layers: list[int]) -> Any:
    """The staged bytes of a layer's plane, as a function."""
    fitted = fit(cache.profile, cache.config)
    stage = Stage(fitted.shape(tokens), layers)
    memory = torch.full((stage.total_bytes,), 255, dtype=torch.uint8)
    held = Cache(fitted, cache.tensors, cache.blocks)
    extraction = Extraction(held, stage, memory, [ids])
    for layer in reversed(layers):  # In any order.
        assert extraction.copy(layer) is None

    def plane(layer: int, which: Plane) -> Any:
        start = stage.offset(layer, which)
        return memory[start : start + stage.shape.sent(which)]

    return plane


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("form", [FP8_DS_MLA, BF16])
@pytest.mark.parametrize("tokens", [1, 64, 130, 192])
def test_rows_and_pages_arrive_in_the_prompts_order(
    form: RowFormat, interleaved: bool, tokens: int
) -> None:
    cache = EngineCache(SMALL, form, interleaved=interleaved)
    ids = [6, 1, 3]
    plane = staged(cache, ids, tokens, [0, 2])
    for layer in (0, 2):
        rows = cache.tensors[f"model.layers.{layer}.self_attn.attn"][ids].reshape(
            -1, form.row_bytes
        )[:tokens]
        keys = cache.tensors[f"model.layers.{layer}.self_attn.indexer.k_cache"]
        assert torch.equal(plane(layer, Plane.KV), rows[:, : form.kv_bytes].flatten())
        assert torch.equal(plane(layer, Plane.PE), rows[:, form.kv_bytes :].flatten())
        assert torch.equal(plane(layer, Plane.KI), keys[ids[: -(-tokens // 64)]].flatten())
    other = cache.tensors["model.layers.1.self_attn.attn"][ids].reshape(-1, form.row_bytes)
    assert not torch.equal(plane(0, Plane.PE), other[:tokens, form.kv_bytes :].flatten())


def test_layers_without_indexer_keys_repeat_those_of_the_last_one() -> None:
    cache = EngineCache(SPARSE, FP8_DS_MLA)
    plane = staged(cache, [2], 64, list(range(5)))
    own = {n: cache.tensors[f"model.layers.{n}.self_attn.indexer.k_cache"][2] for n in (0, 1, 4)}
    for layer, source in enumerate((0, 1, 1, 1, 4)):
        assert torch.equal(plane(layer, Plane.KI), own[source].flatten())
    assert not torch.equal(own[0], own[1])


def test_the_drafters_layer_needs_no_keys_of_its_own() -> None:
    cache = EngineCache(SPARSE, FP8_DS_MLA)
    names = cache.config.kv_cache_groups[0].layer_names
    names.remove("model.layers.4.self_attn.indexer.k_cache")
    fitted = fit(SPARSE, cache.config)
    assert fitted.index[4].name == "model.layers.1.self_attn.indexer.k_cache"


def test_a_model_without_an_indexer_may_have_blocks_of_another_size() -> None:
    cache = EngineCache(PLAIN, BF16, block_tokens=16)
    plane = staged(cache, [5, 0], 20, [0, 1])
    rows = cache.tensors["model.layers.1.self_attn.attn"][[5, 0]].reshape(-1, 1152)[:20]
    assert torch.equal(plane(1, Plane.KV), rows[:, :1024].flatten())


def test_tensors_split_more_finely_than_blocks_are_taken_together() -> None:
    cache = EngineCache(PLAIN, BF16)
    cache.tensors = {n: t.reshape(8 * 4, 16, 1152) for n, t in cache.tensors.items()}
    plane = staged(cache, [5], 64, [0])
    rows = cache.tensors["model.layers.0.self_attn.attn"][20:24].reshape(-1, 1152)
    assert torch.equal(plane(0, Plane.KV), rows[:, :1024].flatten())


def test_a_prompt_with_too_few_blocks_is_refused() -> None:
    with pytest.raises(SendRefused, match="1 blocks") as refused:
        staged(EngineCache(SMALL, BF16), [1], 65, [0])
    assert refused.value.reason == "extraction_failed"


def unfit(profile: Profile, config: Any, tensors: Any = None, blocks: int = 8) -> str:
    with pytest.raises(SendRefused) as refused:
        Cache(fit(profile, config), tensors, blocks)
    assert refused.value.reason == "model_unfit"
    return str(refused.value)


def test_other_models_are_refused_by_name() -> None:
    small = EngineCache(SMALL, FP8_DS_MLA)
    assert "61 layers" in unfit(find("dsv32"), small.config)
    late = EngineCache(SMALL, BF16)
    late.config.kv_cache_groups[0].layer_names.remove("model.layers.0.self_attn.indexer.k_cache")
    assert "this engine in [1, 2]" in unfit(SMALL, late.config)
    assert "layer 0 at least" in unfit(SMALL, EngineCache(PLAIN_AS_SMALL, BF16).config)
    wide = EngineCache(SMALL, BF16)
    for name, spec in wide.config.kv_cache_groups[0].kv_cache_spec.kv_cache_specs.items():
        if "indexer" not in name:
            spec.page_size_bytes = 64 * 2304  # float32
    assert "2304 bytes" in unfit(SMALL, wide.config)
    assert "--block-size 64" in unfit(SMALL, EngineCache(SMALL, BF16, block_tokens=32).config)
    llama = EngineCache(PLAIN, BF16)
    llama.config.kv_cache_groups[0].layer_names[0] = "embedding"
    assert "names no layer" in unfit(PLAIN, llama.config)
    twice = EngineCache(PLAIN, BF16)
    twice.config.kv_cache_groups[0].layer_names[1] = "drafter.layers.0.self_attn.attn"
    assert "two caches are layer 0" in unfit(PLAIN, twice.config)


PLAIN_AS_SMALL = Profile(name="small", layers=3, version=900, indexer=False)


def test_a_listed_set_of_indexer_layers_is_insisted_on() -> None:
    full = EngineCache(Profile(name="x", layers=5, version=1), BF16)
    assert "layers [0, 1, 4]" in unfit(SPARSE, full.config)


def test_blocks_that_are_not_in_one_piece_are_refused() -> None:
    cache = EngineCache(PLAIN, BF16)
    name = "model.layers.0.self_attn.attn"
    cache.tensors[name] = cache.tensors[name].transpose(1, 2)
    assert "in one piece" in unfit(PLAIN, cache.config, cache.tensors)
    cache.tensors[name] = cache.tensors[name][:7]
    assert "7 rows for 8 blocks" in unfit(PLAIN, cache.config, cache.tensors)


def test_engines_that_split_a_prompts_cache_are_refused() -> None:
    config = EngineCache(PLAIN, BF16).config
    alone = SimpleNamespace(pipeline_parallel_size=1)
    assert not isinstance(judge(PLAIN, alone, config), SendRefused)
    for name in ("pipeline_parallel_size", "decode_context_parallel_size"):
        found = judge(PLAIN, SimpleNamespace(**{name: 2}), config)
        assert isinstance(found, SendRefused)
        assert f"{name}=2" in found.detail
