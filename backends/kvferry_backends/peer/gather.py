"""The gather kernel: scattered blocks of all layers in one launch, by plain addresses.

Each program copies one chunk of one block of one span, 8 bytes a word. The span tables hold
(address, stride) per span; block lists hold ids. The source's addresses are those of its memory
as it is mapped into *this* process.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

WORD_BYTES = 8
CHUNK_WORDS = 2048


@triton.jit  # type: ignore[untyped-decorator]
def _copy(  # type: ignore[no-untyped-def]
    source_spans, target_spans, source_blocks, target_blocks, words, CHUNK: tl.constexpr
):
    block = tl.program_id(0)
    span = tl.program_id(1)
    chunk = tl.program_id(2)
    s = tl.load(source_blocks + block).to(tl.int64)
    t = tl.load(target_blocks + block).to(tl.int64)
    source = tl.load(source_spans + 2 * span) + s * tl.load(source_spans + 2 * span + 1)
    target = tl.load(target_spans + 2 * span) + t * tl.load(target_spans + 2 * span + 1)
    offset = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = offset < words
    from_ = source.to(tl.pointer_type(tl.int64)) + offset
    to = target.to(tl.pointer_type(tl.int64)) + offset
    tl.store(to, tl.load(from_, mask=mask), mask=mask)


def span_table(spans: list[tuple[int, int]], device: torch.device) -> Any:
    """(address, stride) pairs on the device, int64."""
    flat = [value for span in spans for value in span]
    return torch.tensor(flat, dtype=torch.int64, device=device)


def launch(
    source_spans: Any, target_spans: Any, source_blocks: Any, target_blocks: Any, span_bytes: int
) -> None:
    """Copy ``source_blocks[i]`` into ``target_blocks[i]`` for every span, on the current stream.

    ``span_bytes`` is the length of every span, a multiple of 8. Block lists are int32 on the
    target device.
    """
    words = span_bytes // WORD_BYTES
    chunk = min(CHUNK_WORDS, triton.next_power_of_2(words))
    grid = (source_blocks.numel(), source_spans.numel() // 2, triton.cdiv(words, chunk))
    _copy[grid](
        source_spans, target_spans, source_blocks, target_blocks, words, CHUNK=chunk, num_warps=8
    )
