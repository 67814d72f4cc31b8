"""Copies a prompt's rows out of vLLM's cache into a staging buffer, layer by layer.

Torch calls only, the same on CPU and CUDA. On CUDA they are queued on the engine's own stream, so
they read what the layer has just written, and before a later step can write the blocks anew; an
event tells the sender when a layer is in its buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.fitting import CacheName, Fit
from kvferry_connectors.tilert.layout import Plane, Stage

WORD_BYTES = 8
"""Rows are copied in words of this size; the width of every part of a row divides by it."""


class Cache:
    """The engine's tensors, each as (blocks, words of a block)."""

    def __init__(self, fitted: Fit, kv_caches: Mapping[str, Any], blocks: int) -> None:
        """
        Raises:
            SendRefused: ``model_unfit``, where a block's bytes do not lie together.
        """
        self.fitted = fitted
        names = {cache.name: cache for cache in (*fitted.rows, *fitted.index)}
        self.words = {name: _words(cache, kv_caches[name], blocks) for name, cache in names.items()}
        self.device = self.words[fitted.rows[0].name].device
        self.layer_of = {cache.name: number for number, cache in enumerate(fitted.rows)}
        """A layer's number by the name under which vLLM reports it as computed."""


class Extraction:
    """One send's copy. Runs on the engine's thread, with few calls for each layer."""

    def __init__(
        self, cache: Cache, stage: Stage, memory: Any, block_ids: Sequence[Sequence[int]]
    ) -> None:
        """``block_ids`` are the request's, for each KV cache group.

        Raises:
            SendRefused: ``extraction_failed``, where the prompt has too few blocks.
        """
        import torch

        self._cache = cache
        self._stage = stage
        self._into = memory.view(torch.int64)
        self._ids: dict[int, Any] = {}
        wanted = stage.shape.blocks
        for group in {one.group for one in (*cache.fitted.rows, *cache.fitted.index)}:
            if len(block_ids[group]) < wanted:
                raise SendRefused(
                    "extraction_failed",
                    f"the request has {len(block_ids[group])} blocks, its prompt of "
                    f"{stage.shape.tokens} tokens fills {wanted}",
                )
            ids = torch.tensor(block_ids[group][:wanted], dtype=torch.int64)
            self._ids[group] = ids.to(cache.device, non_blocking=True)

    def copy(self, layer: int) -> Any:
        """Copy one layer; returns the event after which it is there, None where it is now."""
        import torch

        shape, fitted = self._stage.shape, self._cache.fitted
        rows = self._cache.words[fitted.rows[layer].name]
        wide = rows.view(rows.shape[0], shape.block_tokens, -1)
        split = shape.form.kv_bytes // WORD_BYTES
        ids = self._ids[fitted.rows[layer].group]
        self._gather(wide[:, :, :split], ids, layer, Plane.KV)
        self._gather(wide[:, :, split:], ids, layer, Plane.PE)
        if fitted.index:
            keys = fitted.index[layer]
            self._gather(self._cache.words[keys.name], self._ids[keys.group], layer, Plane.KI)
        if self._cache.device.type == "cpu":
            return None
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._cache.device))
        return ready

    def _gather(self, source: Any, ids: Any, layer: int, plane: Plane) -> None:
        import torch

        first = self._stage.offset(layer, plane) // WORD_BYTES
        count = self._stage.shape.gathered(plane) // WORD_BYTES
        into = self._into[first : first + count].view(ids.shape[0], *source.shape[1:])
        if into.device == source.device:
            torch.index_select(source, 0, ids, out=into)
        else:
            into.copy_(source.index_select(0, ids), non_blocking=True)


def _words(cache: CacheName, tensor: Any, blocks: int) -> Any:
    """A cache's tensor as (blocks, words of a block), without a copy."""
    import torch

    if isinstance(tensor, tuple | list):
        tensor = tensor[0]
    rows, size = int(tensor.shape[0]), tensor.element_size()
    if rows == 0 or rows % blocks:
        raise SendRefused("model_unfit", f"{cache.name!r} has {rows} rows for {blocks} blocks")
    # What vLLM registers may be split more finely than its blocks are.
    parts = rows // blocks
    row_bytes, stride = tensor[0].numel() * size, tensor.stride(0) * size
    start = tensor.storage_offset() * size
    apart = not tensor[0].is_contiguous() or (parts > 1 and stride != row_bytes)
    odd = any(number % WORD_BYTES for number in (cache.block_bytes, stride * parts, start))
    if apart or odd or row_bytes * parts != cache.block_bytes:
        raise SendRefused(
            "model_unfit",
            f"the blocks of {cache.name!r} are not {cache.block_bytes} bytes in one piece; set "
            "VLLM_KV_CACHE_LAYOUT=LBNHC",
        )
    storage = tensor.untyped_storage()
    held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    whole = held[: held.numel() // WORD_BYTES * WORD_BYTES].view(torch.int64)
    return whole.as_strided(
        (blocks, cache.block_bytes // WORD_BYTES),
        (stride * parts // WORD_BYTES, 1),
        start // WORD_BYTES,
    )
