"""Rows of a TileRT engine to rows of vLLM's cache. Pure torch functions.

The engine holds bfloat16. vLLM's bfloat16 cache takes the rows as they are. For its fp8_ds_mla
cache they are quantised as vLLM quantises what it computes: such a row is as good as one of vLLM's,
though not the same bytes, for what was quantised, computed with and quantised again differs in its
scales. Rows of a prompt therefore never come through here: their bytes are prefill's own, as the
wire brought them.
"""

from __future__ import annotations

from typing import Any

from kvferry_connectors.tilert.profiles import BF16, LATENT, PAGE_TOKENS, RowFormat

LATENT_TILE = 128
"""Values of the latent part that share a scale."""
FP8_MAX = 448.0
INDEX_FLOOR = 1e-4
"""vLLM's least maximum of an indexer key's values."""
KEY_BYTES = 128
SCALE_BYTES = 4


def latent_rows(kv: Any, pe: Any, form: RowFormat) -> Any:
    """Rows of vLLM's latent cache.

    Args:
        kv: (tokens, 512) bfloat16, the latent part.
        pe: (tokens, 64) bfloat16, the rotary part, which every format keeps as it is.

    Returns:
        (tokens, ``form.row_bytes``) uint8.
    """
    import torch

    rope = pe.contiguous().view(torch.uint8)
    if form is BF16:
        return torch.cat((kv.contiguous().view(torch.uint8), rope), 1)
    tiles = kv.float().view(-1, LATENT // LATENT_TILE, LATENT_TILE)
    scale = (tiles.abs().amax(-1) / FP8_MAX).clamp_min(torch.finfo(torch.float32).tiny)
    codes = _codes(tiles / scale.unsqueeze(-1)).view(-1, LATENT)
    return torch.cat((codes, scale.contiguous().view(torch.uint8), rope), 1)


def index_keys(ki: Any) -> tuple[Any, Any]:
    """An indexer's keys as vLLM's pages have them.

    The wire's conversion has turned them by a Hadamard matrix, which is its own inverse.

    Args:
        ki: (tokens, 128) bfloat16, as the engine has them.

    Returns:
        (tokens, 128) and (tokens, 4) uint8: e4m3 values, and an fp32 scale, a power of two.
    """
    import torch

    keys = ki.float() @ hadamard(ki.shape[-1], ki.device)
    peak = keys.abs().amax(-1, keepdim=True).clamp_min(INDEX_FLOOR)
    scale = torch.exp2(torch.ceil(torch.log2(peak / FP8_MAX)))
    return _codes(keys / scale), scale.contiguous().view(torch.uint8)


def index_page(page: Any, at: int, codes: Any, scales: Any) -> None:
    """Put keys into one page of 64 tokens from token ``at`` on.

    Args:
        page: (8448,) uint8.
        codes: (tokens, 128) uint8.
        scales: (tokens, 4) uint8.
    """
    count = codes.shape[0]
    keys = page[: PAGE_TOKENS * KEY_BYTES].view(PAGE_TOKENS, KEY_BYTES)
    factors = page[PAGE_TOKENS * KEY_BYTES :].view(PAGE_TOKENS, SCALE_BYTES)
    keys[at : at + count] = codes
    factors[at : at + count] = scales


def hadamard(size: int, device: Any = None) -> Any:
    """Sylvester's matrix of ``size`` rows, orthonormal and symmetric: (size, size) fp32.

    Raises:
        ValueError: ``size`` is no power of two.
    """
    import torch

    if size < 1 or size & (size - 1):
        raise ValueError(f"there is no Sylvester matrix of {size} rows")
    made = torch.ones((1, 1), device=device)
    step = torch.tensor([[1.0, 1.0], [1.0, -1.0]], device=device)
    while made.shape[0] < size:
        made = torch.kron(step, made)
    return made / size**0.5


def _codes(values: Any) -> Any:
    """e4m3 values as bytes."""
    import torch

    return values.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
