"""Pools of blocks in this process's memory, and byte-exact comparison of two of them."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence

from kvferry.ports.backend import Regions, Span

CANARY = 0xA5


def pattern(seed: str, block: int, size: int) -> bytes:
    """What block ``block`` of the pool ``seed`` holds; differs in every block and every 32 bytes
    of nothing but its repetition."""
    unit = hashlib.sha256(f"{seed}:{block}".encode()).digest()
    return (unit * (size // len(unit) + 1))[:size]


class Pool:
    """Blocks of ``widths`` bytes per span, with ``gap`` bytes of canary after each."""

    def __init__(self, blocks: int, widths: Sequence[int], gap: int = 0) -> None:
        self.blocks = blocks
        self.widths = tuple(widths)
        self._strides = [width + gap for width in widths]
        self._bases: list[int] = []
        size = 0
        for stride in self._strides:
            self._bases.append(size)
            size += blocks * stride
        self.memory = bytearray([CANARY]) * size
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.regions = Regions(
            spans=tuple(
                Span(address=address + base, stride=stride, length=width)
                for base, stride, width in zip(self._bases, self._strides, self.widths, strict=True)
            ),
            blocks=blocks,
            owner=self.memory,
        )

    @property
    def block_bytes(self) -> int:
        return sum(self.widths)

    def get(self, block: int) -> bytes:
        """The bytes of a block, span after span."""
        return b"".join(self.memory[start:stop] for start, stop in self._extents(block))

    def put(self, block: int, data: bytes) -> None:
        """Overwrite a block."""
        taken = 0
        for start, stop in self._extents(block):
            self.memory[start:stop] = data[taken : taken + stop - start]
            taken += stop - start

    def fill(self, seed: str) -> None:
        """Give every block the pattern of ``seed``."""
        for block in range(self.blocks):
            self.put(block, pattern(seed, block, self.block_bytes))

    def first_byte_of(self, block: int) -> int:
        return self.memory[self._bases[0] + block * self._strides[0]]

    def _extents(self, block: int) -> list[tuple[int, int]]:
        return [
            (base + block * stride, base + block * stride + width)
            for base, stride, width in zip(self._bases, self._strides, self.widths, strict=True)
        ]


def snapshot(pool: Pool) -> bytes:
    return bytes(pool.memory)


def wrong_bytes(before: bytes, target: Pool, expected: dict[int, bytes]) -> tuple[list[int], bool]:
    """How ``target`` differs from ``before`` with ``expected`` blocks put into it.

    Returns:
        The expected blocks whose bytes are wrong, and whether any other byte of the pool's
        memory changed (blocks not named, and the gaps).
    """
    bad = [block for block, data in expected.items() if target.get(block) != data]
    ideal = Pool.__new__(Pool)
    ideal.__dict__.update(target.__dict__)
    ideal.memory = bytearray(before)
    for block in expected:
        ideal.put(block, target.get(block))
    return bad, ideal.memory != target.memory
