"""Copies a prompt's rows out of vLLM's cache into a staging buffer, layer by layer.

Torch calls only, the same on CPU and CUDA. On CUDA they are queued on the engine's own stream, so
they read what the layer has just written, and before a later step can write the blocks anew; an
event tells the sender when a layer is in its buffer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.layout import Plane, Shape, Stage
from kvferry_connectors.tilert.profiles import (
    FORMATS,
    INDEX_PAGE_BYTES,
    PAGE_TOKENS,
    Profile,
    RowFormat,
)

WORD_BYTES = 8
"""Rows are copied in words of this size; every width of a row divides by it."""
_LAYER = re.compile(r"\.(\d+)\.")


class CacheLayer:
    """One layer's tensor as blocks of words."""

    def __init__(self, name: str, blocks: Any, group: int) -> None:
        self.name = name
        self.blocks = blocks
        """Shape (blocks, words of a block)."""
        self.group = group
        """The KV cache group whose block ids name its blocks."""


class Cache:
    """The engine's KV cache as a profile describes it."""

    def __init__(
        self, profile: Profile, kv_caches: Mapping[str, Any], kv_cache_config: Any
    ) -> None:
        """
        Raises:
            SendRefused: ``model_unfit``, naming what does not fit.
        """
        self.profile = profile
        group_of = {
            name: number
            for number, group in enumerate(kv_cache_config.kv_cache_groups)
            for name in group.layer_names
        }
        blocks = int(kv_cache_config.num_blocks)
        rows: dict[int, CacheLayer] = {}
        index: dict[int, CacheLayer] = {}
        for name, tensor in kv_caches.items():
            number = _layer_number(name, profile)
            into = index if "indexer" in name else rows
            if number in into:
                raise SendRefused("model_unfit", f"two caches are layer {number}: {name!r}")
            into[number] = CacheLayer(name, _words(name, tensor, blocks), group_of.get(name, 0))
        if sorted(rows) != list(range(profile.layers)):
            raise SendRefused(
                "model_unfit",
                f"profile {profile.name} has {profile.layers} layers with a latent cache, this "
                f"engine {len(rows)}; check --speculative-config and the profile",
            )
        self.rows = [rows[number] for number in range(profile.layers)]
        self.index = _expanded(profile, index) if profile.indexer else []
        self.block_tokens, self.form = _form(self.rows, kv_cache_config)
        self._check_blocks()
        self.layer_of = {layer.name: number for number, layer in enumerate(self.rows)}
        """A layer's number by the name under which vLLM reports it as computed."""

    def shape(self, tokens: int) -> Shape:
        """What a prompt of ``tokens`` measures."""
        return Shape(
            profile=self.profile, form=self.form, tokens=tokens, block_tokens=self.block_tokens
        )

    def _check_blocks(self) -> None:
        for layer in self.rows:
            held = layer.blocks.shape[1] * WORD_BYTES
            if held != self.block_tokens * self.form.row_bytes:
                raise SendRefused(
                    "model_unfit", f"layer {layer.name!r} has blocks of {held} bytes, padded"
                )
        if not self.profile.indexer:
            return
        if self.block_tokens != PAGE_TOKENS:
            raise SendRefused(
                "model_unfit",
                f"TileRT's indexer pages have {PAGE_TOKENS} tokens, this engine's blocks "
                f"{self.block_tokens}; start vLLM with --block-size {PAGE_TOKENS}",
            )
        for layer in self.index:
            held = layer.blocks.shape[1] * WORD_BYTES
            if held != INDEX_PAGE_BYTES:
                raise SendRefused(
                    "model_unfit",
                    f"layer {layer.name!r} has pages of {held} bytes, TileRT's have "
                    f"{INDEX_PAGE_BYTES}",
                )


class Extraction:
    """One send's copy. Runs on the engine's thread, with few calls for each layer."""

    def __init__(
        self, cache: Cache, stage: Stage, memory: Any, block_ids: Sequence[Sequence[int]]
    ) -> None:
        """``block_ids`` of the request, for each KV cache group.

        Raises:
            SendRefused: ``extraction_failed``, where the prompt has too few blocks.
        """
        import torch

        self._cache = cache
        self._stage = stage
        words = memory.view(torch.int64)
        self._words = words
        shape = stage.shape
        device = cache.rows[0].blocks.device
        self._ids: dict[int, Any] = {}
        for group in {layer.group for layer in (*cache.rows, *cache.index)}:
            ids = block_ids[group]
            if len(ids) < shape.blocks:
                raise SendRefused(
                    "extraction_failed",
                    f"the request has {len(ids)} blocks, its prompt of {shape.tokens} tokens "
                    f"fills {shape.blocks}",
                )
            held = torch.tensor(ids[: shape.blocks], dtype=torch.int64)
            self._ids[group] = held.to(device, non_blocking=True)

    def copy(self, layer: int) -> Any:
        """Copy one layer; returns the event after which it is there, None where it is now."""
        import torch

        shape = self._stage.shape
        rows = self._cache.rows[layer]
        wide = rows.blocks.view(rows.blocks.shape[0], shape.block_tokens, -1)
        split = shape.form.kv_bytes // WORD_BYTES
        ids = self._ids[rows.group]
        self._gather(wide[:, :, :split], ids, layer, Plane.KV)
        self._gather(wide[:, :, split:], ids, layer, Plane.PE)
        if shape.profile.indexer:
            index = self._cache.index[layer]
            self._gather(index.blocks, self._ids[index.group], layer, Plane.KI)
        if rows.blocks.device.type == "cpu":
            return None
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(rows.blocks.device))
        return ready

    def _gather(self, source: Any, ids: Any, layer: int, plane: Plane) -> None:
        import torch

        first = self._stage.offset(layer, plane) // WORD_BYTES
        count = self._stage.shape.gathered(plane) // WORD_BYTES
        into = self._words[first : first + count].view(ids.shape[0], *source.shape[1:])
        if into.device == source.device:
            torch.index_select(source, 0, ids, out=into)
        else:
            into.copy_(source.index_select(0, ids), non_blocking=True)


def _layer_number(name: str, profile: Profile) -> int:
    if name.startswith("mtp."):
        return profile.layers - 1
    found = _LAYER.search(f"{name}.")
    if found is None:
        raise SendRefused("model_unfit", f"cache {name!r} names no layer")
    return int(found[1])


def _words(name: str, tensor: Any, blocks: int) -> Any:
    """A layer's tensor as (blocks, words of a block), without a copy.

    Raises:
        SendRefused: ``model_unfit``, where a block's bytes do not lie together.
    """
    import torch

    if isinstance(tensor, tuple | list):
        tensor = tensor[0]
    rows, size = int(tensor.shape[0]), tensor.element_size()
    if rows == 0 or rows % blocks:
        raise SendRefused("model_unfit", f"cache {name!r} has {rows} rows for {blocks} blocks")
    page = tensor[0].numel() * size
    together = page * (rows // blocks)
    stride = tensor.stride(0) * size * (rows // blocks)
    piece = not tensor[0].is_contiguous() or (rows != blocks and tensor.stride(0) * size != page)
    start = tensor.storage_offset() * size
    if piece or stride < together or any(n % WORD_BYTES for n in (together, stride, start)):
        raise SendRefused("model_unfit", f"the blocks of cache {name!r} are not in one piece each")
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    whole.set_(tensor.untyped_storage())
    usable = whole[: whole.numel() // WORD_BYTES * WORD_BYTES].view(torch.int64)
    return usable.as_strided(
        (blocks, together // WORD_BYTES), (stride // WORD_BYTES, 1), start // WORD_BYTES
    )


def _form(rows: Sequence[CacheLayer], kv_cache_config: Any) -> tuple[int, RowFormat]:
    """Tokens of a block, and how rows are stored.

    Raises:
        SendRefused: ``model_unfit``, for rows of no format of the wire.
    """
    tokens = int(kv_cache_config.kv_cache_groups[rows[0].group].kv_cache_spec.block_size)
    width = rows[0].blocks.shape[1] * WORD_BYTES / tokens
    if width not in FORMATS:
        known = ", ".join(f"{size} ({form.name})" for size, form in FORMATS.items())
        raise SendRefused(
            "model_unfit",
            f"this engine's cache has {width:g} bytes for each token and layer, the wire {known}; "
            "set --kv-cache-dtype fp8_ds_mla or bfloat16",
        )
    return tokens, FORMATS[int(width)]


def _expanded(profile: Profile, index: Mapping[int, CacheLayer]) -> list[CacheLayer]:
    """Each layer's indexer keys: its own, else those of the last layer before it.

    Raises:
        SendRefused: ``model_unfit``, where layers have keys that should not, or the other way.
    """
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
    return found
