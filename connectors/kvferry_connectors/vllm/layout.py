"""Where the bytes of a block lie in the tensors that vLLM registers."""

from __future__ import annotations

from typing import Any

from kvferry.errors import EngineUnsupported
from kvferry.ports.backend import Regions, Span


def regions_of(kv_caches: dict[str, Any], kv_cache_config: Any) -> Regions:
    """The pool's blocks as spans, one span a layer, or fewer where layers lie together.

    Page sizes come from the engine's own cache specification, never from shapes: quantised and
    padded pages are larger than their elements. Registered views may be of kernel blocks, which
    are a fraction of a block; the stride of a whole block is then a multiple of theirs.

    Raises:
        EngineUnsupported: a tensor is not laid out in equal strides of whole blocks, or the
            bytes of a block do not lie together.
    """
    blocks = kv_cache_config.num_blocks
    group = kv_cache_config.kv_cache_groups[0]
    specs = getattr(group.kv_cache_spec, "kv_cache_specs", None) or {}
    spans: dict[int, Span] = {}
    kind, device = "host", 0
    for name in group.layer_names:
        tensor = kv_caches.get(name)
        if tensor is None:
            raise EngineUnsupported(f"vLLM registered no KV cache for layer {name!r}")
        page = int(specs.get(name, group.kv_cache_spec).page_size_bytes)
        rows = tensor.shape[0]
        if rows % blocks:
            raise EngineUnsupported(
                f"layer {name!r} has {rows} rows for {blocks} blocks: not a whole number each"
            )
        stride = int(tensor.stride(0)) * tensor.element_size() * (rows // blocks)
        if stride < page:
            raise EngineUnsupported(
                f"layer {name!r}: {stride} bytes from block to block hold no page of {page} bytes"
            )
        extent = _extent(tensor) * (rows // blocks)
        if extent > page:
            raise EngineUnsupported(
                f"layer {name!r}: a block of {page} bytes is spread over {extent} bytes, between "
                "those of other layers; set VLLM_KV_CACHE_LAYOUT=LBNHC or another layout whose "
                "blocks are in one piece"
            )
        address = int(tensor.data_ptr())
        # Layers that share memory (for example tied cross-attention caches) move once.
        spans.setdefault(address, Span(address, stride, page))
        if tensor.device.type != "cpu":
            kind, device = tensor.device.type, tensor.device.index or 0
    return Regions(tuple(spans.values()), blocks, kind, device, owner=tuple(kv_caches.values()))


def _extent(tensor: Any) -> int:
    """Bytes from the first to behind the last element of one row."""
    sizes, strides = tensor.shape[1:], tensor.stride()[1:]
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return int(last + 1) * int(tensor.element_size())
