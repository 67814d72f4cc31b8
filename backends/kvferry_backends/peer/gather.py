"""The gather kernel: scattered blocks of all layers in one launch, by plain addresses.

Each program copies one chunk of one block of one span. The span tables hold (address, stride) per
span; block lists hold ids. The source's addresses are those of its memory as it is mapped into
*this* process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

WORD_BYTES = 8
CHUNK_WORDS = 2048
_IDS_ALIGNED = 4
"""Both block lists begin at a multiple of 16 bytes: for another alignment Triton would compile
the kernel again, in the middle of a transfer."""


@triton.jit  # type: ignore[untyped-decorator]
def _copy(  # type: ignore[no-untyped-def]
    source_spans,
    target_spans,
    source_blocks,
    target_blocks,
    words,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
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
    if WIDE:
        from_ = source.to(tl.pointer_type(tl.int64)) + offset
        to = target.to(tl.pointer_type(tl.int64)) + offset
        tl.store(to, tl.load(from_, mask=mask), mask=mask)
    else:
        from_ = source.to(tl.pointer_type(tl.int8)) + offset
        to = target.to(tl.pointer_type(tl.int8)) + offset
        tl.store(to, tl.load(from_, mask=mask), mask=mask)


def span_table(spans: Sequence[tuple[int, int]], device: torch.device) -> Any:
    """(address, stride) pairs on the device, int64; ready for what follows on this stream."""
    return _on_device(array("q", [value for span in spans for value in span]), device)


def block_lists(source: Sequence[int], target: Sequence[int], device: torch.device) -> Any:
    """Two lists of block ids on the device, int32; ready for what follows on this stream."""
    count = len(source)
    padded = -(-count // _IDS_ALIGNED) * _IDS_ALIGNED
    ids = _on_device(array("i", [*source, *([0] * (padded - count)), *target]), device)
    return ids[:count], ids[padded:]


def _on_device(values: array[int], device: torch.device) -> Any:
    """Through pinned memory: from pageable memory the copy would wait for the stream."""
    dtype = torch.int64 if values.typecode == "q" else torch.int32
    here = torch.frombuffer(values, dtype=dtype)
    if device.type == "cuda":
        here = here.pin_memory()
    return here.to(device, non_blocking=True)


def launch(
    source_spans: Any,
    target_spans: Any,
    source_blocks: Any,
    target_blocks: Any,
    span_bytes: int,
    *,
    wide: bool = True,
) -> None:
    """Copy ``source_blocks[i]`` into ``target_blocks[i]`` for every span, on the current stream.

    ``span_bytes`` is the length of every span. ``wide`` copies 8 bytes at a time, for which all
    addresses, strides and lengths are multiples of 8; else it is byte by byte. Block lists are
    int32 on the target device, each aligned to 16 bytes.
    """
    words = span_bytes // WORD_BYTES if wide else span_bytes
    chunk = min(CHUNK_WORDS, triton.next_power_of_2(words))
    grid = (source_blocks.numel(), source_spans.numel() // 2, triton.cdiv(words, chunk))
    _copy[grid](
        source_spans,
        target_spans,
        source_blocks,
        target_blocks,
        words,
        CHUNK=chunk,
        WIDE=wide,
        num_warps=8,
    )
