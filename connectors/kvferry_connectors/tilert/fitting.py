"""Whether an engine's KV cache is one that a profile describes, and which cache is which layer.

Decided from the engine's own cache specification, which scheduler and workers share: the scheduler
refuses by name what no worker could send.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.layout import Shape
from kvferry_connectors.tilert.profiles import (
    FORMATS,
    INDEX_PAGE_BYTES,
    PAGE_TOKENS,
    Profile,
    RowFormat,
)

_LAYER = re.compile(r"\.(\d+)(\.|$)")


class CacheName(msgspec.Struct, frozen=True):
    """One of the engine's caches."""

    name: str
    group: int
    """The KV cache group whose block ids name its blocks."""
    block_tokens: int
    block_bytes: int


class Fit(msgspec.Struct, frozen=True):
    """An engine's cache as a profile has it."""

    profile: Profile
    form: RowFormat
    block_tokens: int
    rows: tuple[CacheName, ...]
    """Latent cache of each layer, in order."""
    index: tuple[CacheName, ...]
    """Indexer keys of each layer; several layers may share one. Empty without an indexer."""

    def shape(self, tokens: int) -> Shape:
        """What a prompt of ``tokens`` measures."""
        return Shape(
            profile=self.profile, form=self.form, tokens=tokens, block_tokens=self.block_tokens
        )


def judge(profile: Profile, parallel_config: Any, kv_cache_config: Any) -> Fit | SendRefused:
    """The engine's cache as the profile has it, or why it is none."""
    for name in (
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ):
        size = int(getattr(parallel_config, name, 1) or 1)
        if size > 1:
            return SendRefused(
                "model_unfit", f"{name}={size}: each rank must hold the whole prompt's KV"
            )
    try:
        return fit(profile, kv_cache_config)
    except SendRefused as refused:
        return refused


def fit(profile: Profile, kv_cache_config: Any) -> Fit:
    """
    Raises:
        SendRefused: ``model_unfit``, naming what does not fit.
    """
    rows: dict[int, CacheName] = {}
    index: dict[int, CacheName] = {}
    for cache in _caches(kv_cache_config):
        number = _layer_number(cache.name, profile)
        into = index if "indexer" in cache.name else rows
        if number in into:
            raise SendRefused("model_unfit", f"two caches are layer {number}: {cache.name!r}")
        into[number] = cache
    if sorted(rows) != list(range(profile.layers)):
        raise SendRefused(
            "model_unfit",
            f"profile {profile.name} has {profile.layers} layers with a latent cache, this engine "
            f"{len(rows)}; check --speculative-config and the profile",
        )
    ordered = tuple(rows[number] for number in range(profile.layers))
    keys = _expanded(profile, index) if profile.indexer else ()
    form, block_tokens = _form(ordered)
    _check_pages(keys, block_tokens)
    return Fit(profile, form, block_tokens, ordered, keys)


def _caches(kv_cache_config: Any) -> list[CacheName]:
    found = []
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", None) or {}
        for name in group.layer_names:
            spec = specs.get(name, group.kv_cache_spec)
            found.append(CacheName(name, number, int(spec.block_size), int(spec.page_size_bytes)))
    return found


def _layer_number(name: str, profile: Profile) -> int:
    if name.startswith("mtp."):
        return profile.layers - 1
    found = _LAYER.search(name)
    if found is None:
        raise SendRefused("model_unfit", f"cache {name!r} names no layer")
    return int(found[1])


def _form(rows: tuple[CacheName, ...]) -> tuple[RowFormat, int]:
    """How rows are stored, and tokens of a block; the same for all layers."""
    first = rows[0]
    width = first.block_bytes / first.block_tokens
    if width not in FORMATS:
        known = " or ".join(f"{size} ({form.name})" for size, form in FORMATS.items())
        raise SendRefused(
            "model_unfit",
            f"this engine's cache has {width:g} bytes for each token and layer, the wire {known}; "
            "set --kv-cache-dtype fp8_ds_mla or bfloat16",
        )
    for row in rows:
        if (row.block_bytes, row.block_tokens) != (first.block_bytes, first.block_tokens):
            raise SendRefused("model_unfit", f"{row.name!r} has other blocks than {first.name!r}")
    return FORMATS[int(width)], first.block_tokens


def _check_pages(keys: tuple[CacheName, ...], block_tokens: int) -> None:
    if keys and block_tokens != PAGE_TOKENS:
        raise SendRefused(
            "model_unfit",
            f"TileRT's indexer pages have {PAGE_TOKENS} tokens, this engine's blocks "
            f"{block_tokens}; start vLLM with --block-size {PAGE_TOKENS}",
        )
    for cache in keys:
        if cache.block_bytes != INDEX_PAGE_BYTES:
            raise SendRefused(
                "model_unfit",
                f"cache {cache.name!r} has pages of {cache.block_bytes} bytes, TileRT's have "
                f"{INDEX_PAGE_BYTES}",
            )


def _expanded(profile: Profile, index: Mapping[int, CacheName]) -> tuple[CacheName, ...]:
    """Each layer's indexer keys: its own, else those of the last layer before it."""
    listed = set(profile.indexer_layers) or set(index)
    without_draft = listed - {profile.layers - 1} if profile.draft_layer else listed
    if 0 not in index or set(index) not in (listed, without_draft):
        wanted = sorted(listed) or "layer 0 at least"
        raise SendRefused(
            "model_unfit",
            f"profile {profile.name} has indexer keys in layers {wanted}, this engine in "
            f"{sorted(index)}",
        )
    found, last = [], index[0]
    for number in range(profile.layers):
        last = index.get(number, last)
        found.append(last)
    return tuple(found)
