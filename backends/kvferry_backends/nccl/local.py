"""What both ends of this backend need to know of their own side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvferry_backends.nccl.pipe import Device
from kvferry_backends.packing.chunks import chunk_blocks, chunks

CHUNK_WORTHWHILE_BYTES = 16 * 1024 * 1024
"""Up to here a send takes as long as one of a few bytes: some 55 microseconds over NVLink."""


@dataclass(frozen=True)
class Local:
    """Our side: the registered pool on its device."""

    instance: str
    device: Device
    blocks: int
    widths: tuple[int, ...]
    slots: int
    """Of each ring."""
    slot_blocks: int
    """The most blocks that fit a slot of our rings."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all spans."""
        return sum(self.widths)

    def chunk_blocks(self, total: int) -> int:
        """Blocks of each chunk of a transfer of ``total``, as far as our rings are concerned."""
        overlapping = chunk_blocks(
            total, self.block_bytes, self.slot_blocks * self.block_bytes, self.slots
        )
        worthwhile = -(-CHUNK_WORTHWHILE_BYTES // self.block_bytes)
        return min(self.slot_blocks, total, max(overlapping, worthwhile))

    def ranges(self, total: int, blocks: int) -> Iterator[tuple[int, int]]:
        """The positions of a transfer of ``total`` blocks, in chunks of ``blocks``.

        The same on both ends; which slots they go through is each end's own affair.
        """
        for chunk in chunks(total, blocks, self.slots):
            yield chunk.start, chunk.stop
