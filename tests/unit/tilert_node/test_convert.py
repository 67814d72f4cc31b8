"""Rows of a TileRT engine become rows of vLLM's cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvferry_connectors.tilert.node.convert import hadamard, index_keys, index_page, latent_rows
from kvferry_connectors.tilert.profiles import BF16, FP8_DS_MLA, INDEX_PAGE_BYTES


def drawn(count: int, width: int, seed: int = 0) -> Any:
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn((count, width), generator=draw) * 3).to(torch.bfloat16)


def test_bfloat16_rows_are_the_engines() -> None:
    kv, pe = drawn(5, 512), drawn(5, 64, 1)
    rows = latent_rows(kv, pe, BF16)
    assert rows.shape == (5, 1152)
    assert torch.equal(rows.view(torch.bfloat16), torch.cat((kv, pe), 1))


def test_fp8_rows_hold_the_latent_part_as_near_as_e4m3_can() -> None:
    kv, pe = drawn(70, 512), drawn(70, 64, 1)
    kv[3] = 0
    rows = latent_rows(kv, pe, FP8_DS_MLA)
    assert rows.shape == (70, 656)
    assert torch.equal(rows[:, 528:].contiguous().view(torch.bfloat16), pe)
    codes = rows[:, :512].contiguous().view(torch.float8_e4m3fn).double()
    scale = rows[:, 512:528].contiguous().view(torch.float32).double()
    peaks = kv.double().view(70, 4, 128).abs().amax(-1)
    # The largest value of each 128 uses the format's whole range.
    assert torch.allclose(scale * 448, peaks, rtol=1e-6, atol=1e-30)
    off = (codes * scale.repeat_interleave(128, 1) - kv.double()).abs()
    smallest = scale.repeat_interleave(128, 1) * 2**-10
    assert bool((off <= kv.double().abs() / 16 + smallest).all())
    assert bool((off > 0).any())


def test_what_prefill_quantised_would_not_come_back_the_same() -> None:
    """Why rows of a prompt never come this way: prefill's scales are of values in fp32."""
    values = drawn(9, 512).float() * 1.001
    scale = values.view(9, 4, 128).abs().amax(-1) / 448
    wide = scale.repeat_interleave(128, 1)
    codes = (values / wide).to(torch.float8_e4m3fn)
    again = latent_rows((codes.float() * wide).to(torch.bfloat16), drawn(9, 64, 1), FP8_DS_MLA)
    same = again[:, :512] == codes.view(torch.uint8)
    assert float(same.float().mean()) > 0.99
    assert not torch.equal(again[:, 512:528].contiguous().view(torch.float32), scale)


def test_the_matrix_is_its_own_inverse() -> None:
    matrix = hadamard(128)
    assert torch.allclose(matrix @ matrix, torch.eye(128), atol=1e-5)
    assert torch.equal(matrix, matrix.T)
    with pytest.raises(ValueError, match="96 rows"):
        hadamard(96)


def test_indexer_keys_come_back_from_what_the_wire_made_of_them() -> None:
    keys = drawn(40, 128)
    turned = (keys.float() @ hadamard(128)).to(torch.bfloat16)
    codes, scales = index_keys(turned)
    assert (codes.shape, scales.shape) == ((40, 128), (40, 4))
    factor = scales.view(torch.float32)
    assert torch.equal(torch.exp2(torch.round(torch.log2(factor))), factor)
    found = codes.view(torch.float8_e4m3fn).float() * factor
    off = (found - keys.float()).abs()
    peak = keys.float().abs().amax(-1, keepdim=True)
    assert bool((off <= keys.float().abs() / 16 + peak / 64).all())


def test_a_page_has_keys_first_and_then_their_scales() -> None:
    page = torch.zeros(INDEX_PAGE_BYTES, dtype=torch.uint8)
    codes = torch.full((3, 128), 7, dtype=torch.uint8)
    scales = torch.full((3, 4), 9, dtype=torch.uint8)
    index_page(page, 61, codes, scales)
    assert page[: 61 * 128].count_nonzero() == 0
    assert bool((page[61 * 128 : 64 * 128] == 7).all())
    assert page[64 * 128 : 64 * 128 + 61 * 4].count_nonzero() == 0
    assert bool((page[64 * 128 + 61 * 4 :] == 9).all())
