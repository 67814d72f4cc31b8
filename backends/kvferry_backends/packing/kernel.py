"""The packing kernel: one launch copies a chunk of blocks between a pool and a slot.

Each program copies one piece of one block of one span, a word at a time. The pool's span table
holds (address, stride, offset of the span within a block) for each span; where a block's bytes
lie in the slot follows from these and the number of blocks in the chunk.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

PIECE_WORDS = 2048

_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


@triton.jit(do_not_specialize=["slot", "count"])  # type: ignore[untyped-decorator]
def _move(  # type: ignore[no-untyped-def]
    spans,
    blocks,
    slot,
    count,
    words,
    PIECE: tl.constexpr,
    WORD: tl.constexpr,
    WORD_BYTES: tl.constexpr,
    PACK: tl.constexpr,
):
    nth = tl.program_id(0)
    span = tl.program_id(1)
    piece = tl.program_id(2)
    block = tl.load(blocks + nth).to(tl.int64)
    scattered = tl.load(spans + 3 * span) + block * tl.load(spans + 3 * span + 1)
    packed = slot + count * tl.load(spans + 3 * span + 2) + nth.to(tl.int64) * words * WORD_BYTES
    offset = piece * PIECE + tl.arange(0, PIECE)
    mask = offset < words
    at_block = scattered.to(tl.pointer_type(WORD)) + offset
    at_slot = packed.to(tl.pointer_type(WORD)) + offset
    if PACK:
        tl.store(at_slot, tl.load(at_block, mask=mask), mask=mask)
    else:
        tl.store(at_block, tl.load(at_slot, mask=mask), mask=mask)


def launch(spans: Any, blocks: Any, slot: int, *, width: int, word_bytes: int, pack: bool) -> None:
    """Copy the blocks of spans of one ``width`` into the slot, or out of it.

    On the current stream. ``spans`` (int64, three for each span) and ``blocks`` (int32 ids) lie on
    the device. ``word_bytes`` divides every address, stride, offset and width.
    """
    words = width // word_bytes
    piece = min(PIECE_WORDS, triton.next_power_of_2(words))
    count = blocks.numel()
    grid = (count, spans.numel() // 3, triton.cdiv(words, piece))
    _move[grid](
        spans,
        blocks,
        slot,
        count,
        words,
        PIECE=piece,
        WORD=_WORDS[word_bytes],
        WORD_BYTES=word_bytes,
        PACK=pack,
        num_warps=8,
    )
