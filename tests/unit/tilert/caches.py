"""An engine's KV cache in the shapes that vLLM registers, with random but valid content.

It stands in for a GPU engine's: models with TileRT's indexer cannot run on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from kvferry_connectors.tilert.profiles import INDEX_PAGE_BYTES, PAGE_TOKENS, Profile, RowFormat


@dataclass
class EngineCache:
    """Tensors by layer, and the configuration that goes with them.

    Attributes:
        interleaved: all layers of a block lie together, so that a layer's blocks are far apart.
    """

    profile: Profile
    form: RowFormat
    blocks: int = 8
    seed: int = 0
    interleaved: bool = False
    block_tokens: int = PAGE_TOKENS
    tensors: dict[str, Any] = field(default_factory=dict)
    config: Any = None

    def __post_init__(self) -> None:
        pages = {
            f"model.layers.{n}.self_attn.attn": self.block_tokens * self.form.row_bytes
            for n in range(self.profile.layers)
        }
        if self.profile.indexer:
            own = self.profile.indexer_layers or range(self.profile.layers)
            pages |= {f"model.layers.{n}.self_attn.indexer.k_cache": INDEX_PAGE_BYTES for n in own}
        total = sum(pages.values())
        raw = torch.zeros(self.blocks * total, dtype=torch.uint8)
        at = 0
        for number, (name, page) in enumerate(pages.items()):
            stride, start = (total, at) if self.interleaved else (page, at * self.blocks)
            held = raw.as_strided((self.blocks, page), (stride, 1), start)
            held.copy_(self._content(name, number, page))
            width = page // self.block_tokens
            shape, strides = (self.blocks, self.block_tokens, width), (stride, width, 1)
            self.tensors[name] = raw.as_strided(shape, strides, start)
            at += page
        spec = {
            name: SimpleNamespace(block_size=self.block_tokens, page_size_bytes=page)
            for name, page in pages.items()
        }
        group = SimpleNamespace(
            layer_names=list(pages),
            kv_cache_spec=SimpleNamespace(
                kv_cache_specs=spec, block_size=self.block_tokens, page_size_bytes=0
            ),
        )
        self.config = SimpleNamespace(num_blocks=self.blocks, kv_cache_groups=[group])

    def _content(self, name: str, number: int, page: int) -> Any:
        draw = torch.Generator().manual_seed(1000 * self.seed + number)
        if "indexer" in name:
            keys = _fp8((self.blocks, PAGE_TOKENS * 128), draw)
            scales = _scales((self.blocks, PAGE_TOKENS), draw)
            return torch.cat((keys, scales), 1)
        rows = (self.blocks * self.block_tokens, -1)
        pe = torch.randn((rows[0], 64), generator=draw).to(torch.bfloat16).view(torch.uint8)
        if self.form.name == "bf16":
            kv = torch.randn((rows[0], 512), generator=draw).to(torch.bfloat16).view(torch.uint8)
        else:
            kv = torch.cat((_fp8((rows[0], 512), draw), _scales((rows[0], 4), draw)), 1)
        return torch.cat((kv, pe), 1).view(self.blocks, page)

    def expected(self, layer: int, ids: list[int], tokens: int) -> tuple[Any, Any, Any]:
        """What a decode engine must be given of a prompt: (ki, kv, pe) in bf16, ki as stored.

        The scales are applied here in another way than TileRT applies them; ``ki`` has still to be
        transformed.
        """
        rows = self.tensors[f"model.layers.{layer}.self_attn.attn"][ids].reshape(
            -1, self.form.row_bytes
        )[:tokens]
        pe = rows[:, self.form.kv_bytes :].contiguous().view(torch.bfloat16)
        if self.form.name == "bf16":
            kv = rows[:, :1024].contiguous().view(torch.bfloat16)
        else:
            codes = rows[:, :512].contiguous().view(torch.float8_e4m3fn).to(torch.float64)
            scale = rows[:, 512:528].contiguous().view(torch.float32).to(torch.float64)
            kv = (codes * scale.repeat_interleave(128, 1)).to(torch.bfloat16)
        own = max(
            (n for n in (self.profile.indexer_layers or range(layer + 1)) if n <= layer), default=0
        )
        pages = self.tensors[f"model.layers.{own}.self_attn.indexer.k_cache"][ids]
        flat = pages.reshape(len(ids), -1)
        codes = flat[:, : PAGE_TOKENS * 128].contiguous().view(torch.float8_e4m3fn)
        scale = flat[:, PAGE_TOKENS * 128 :].contiguous().view(torch.float32)
        ki = codes.to(torch.float64).view(-1, 128) * scale.to(torch.float64).reshape(-1, 1)
        return ki[:tokens].to(torch.bfloat16), kv, pe


def _fp8(shape: tuple[int, int], draw: Any) -> Any:
    values = torch.randn(shape, generator=draw).to(torch.float8_e4m3fn)
    return values.view(torch.uint8)


def _scales(shape: tuple[int, int], draw: Any) -> Any:
    return (torch.rand(shape, generator=draw) + 0.5).view(torch.uint8)
