"""How a transfer is cut into chunks that fit a slot, and in which slot each of them lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvferry.errors import BackendError

CHUNK_MIN_BYTES = 4 * 1024 * 1024
"""Below this a chunk's fixed cost, not its bytes, decides how long it takes."""
CHUNKS_PER_SLOT = 2
"""A short transfer is cut so that each slot is used so often, for the steps to overlap."""


class Chunk(NamedTuple):
    """The positions ``start`` to ``stop`` of a transfer's block list, through one slot."""

    start: int
    stop: int
    slot: int


def chunk_blocks(total: int, block_bytes: int, slot_bytes: int, slots: int) -> int:
    """Blocks of each chunk of a transfer of ``total`` blocks.

    As many as a slot holds, but fewer for a short transfer, which would otherwise be packed, moved
    and unpacked one after the other.

    Raises:
        BackendError: not even one block fits a slot.
    """
    fit = slot_bytes // block_bytes
    if fit < 1:
        raise BackendError(
            f"a block of {block_bytes} bytes does not fit a staging slot of {slot_bytes}; "
            "raise the size of the slots"
        )
    overlapping = -(-total // (slots * CHUNKS_PER_SLOT))
    worthwhile = -(-CHUNK_MIN_BYTES // block_bytes)
    return min(fit, total, max(overlapping, worthwhile))


def chunks(total: int, blocks: int, slots: int) -> Iterator[Chunk]:
    """A transfer of ``total`` blocks in chunks of ``blocks``; slots are taken in turn."""
    for nth, start in enumerate(range(0, total, blocks)):
        yield Chunk(start, min(start + blocks, total), nth % slots)
