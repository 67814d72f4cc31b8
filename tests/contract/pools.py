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
    unit = pattern_unit(seed, block)
    return (unit * (size // len(unit) + 1))[:size]


def pattern_unit(seed: str, block: int) -> bytes:
    """The 32 bytes that the pattern of a block repeats."""
    return hashlib.sha256(f"{seed}:{block}".encode()).digest()


class Pool:
    """Blocks of ``widths`` bytes per span, with ``gap`` bytes of canary after each.

    Host memory; a pool in other memory overrides :meth:`_allocate`, :meth:`read`, :meth:`write`,
    :meth:`fill` and :meth:`holds`.
    """

    kind = "host"

    def __init__(
        self, blocks: int, widths: Sequence[int], gap: int = 0, *, device: int = 0
    ) -> None:
        self.blocks = blocks
        self.widths = tuple(widths)
        self.device = device
        self._strides = [width + gap for width in widths]
        self._bases: list[int] = []
        self.size = 0
        for stride in self._strides:
            self._bases.append(self.size)
            self.size += blocks * stride
        address, owner = self._allocate()
        self.regions = Regions(
            spans=tuple(
                Span(address=address + base, stride=stride, length=width)
                for base, stride, width in zip(self._bases, self._strides, self.widths, strict=True)
            ),
            blocks=blocks,
            kind=self.kind,
            device=device,
            owner=owner,
        )

    def _allocate(self) -> tuple[int, object]:
        """The address of ``size`` bytes of canary, and what keeps them alive."""
        self.memory = bytearray([CANARY]) * self.size
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory)), self.memory

    def read(self, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop`` of the whole memory, gaps included."""
        return bytes(self.memory[start:stop])

    def write(self, start: int, data: bytes) -> None:
        """Overwrite the memory from ``start`` on."""
        self.memory[start : start + len(data)] = data

    @property
    def block_bytes(self) -> int:
        return sum(self.widths)

    def get(self, block: int) -> bytes:
        """The bytes of a block, span after span."""
        return b"".join(self.read(start, stop) for start, stop in self.extents(block))

    def put(self, block: int, data: bytes) -> None:
        """Overwrite a block."""
        taken = 0
        for start, stop in self.extents(block):
            self.write(start, data[taken : taken + stop - start])
            taken += stop - start

    def fill(self, seed: str, count: int | None = None) -> None:
        """Give the first ``count`` blocks, by default all, the pattern of ``seed``."""
        for block in range(self.blocks if count is None else count):
            self.put(block, pattern(seed, block, self.block_bytes))

    def holds(self, seed: str, count: int) -> bool:
        """Whether the first ``count`` blocks still have the pattern of ``seed``."""
        return all(
            self.get(block) == pattern(seed, block, self.block_bytes) for block in range(count)
        )

    def first_byte_of(self, block: int) -> int:
        start = self._bases[0] + block * self._strides[0]
        return self.read(start, start + 1)[0]

    def extents(self, block: int) -> list[tuple[int, int]]:
        """Where the block lies in the whole memory, span by span."""
        return [
            (base + block * stride, base + block * stride + width)
            for base, stride, width in zip(self._bases, self._strides, self.widths, strict=True)
        ]


def make_pool(
    kind: str, blocks: int, widths: Sequence[int], gap: int = 0, *, device: int = 0
) -> Pool:
    """A pool in memory of that kind."""
    if kind == "host":
        return Pool(blocks, widths, gap)
    from tests.contract.tensor_pools import TensorPool

    return TensorPool(blocks, widths, gap, device=device)


def snapshot(pool: Pool) -> bytes:
    return pool.read(0, pool.size)


def wrong_bytes(before: bytes, target: Pool, expected: dict[int, bytes]) -> tuple[list[int], bool]:
    """How ``target`` differs from ``before`` with ``expected`` blocks put into it.

    Returns:
        The expected blocks whose bytes are wrong, and whether any other byte of the pool's
        memory changed (blocks not named, and the gaps).
    """
    after = snapshot(target)
    rest = bytearray(before)
    bad = []
    for block, data in expected.items():
        extents = target.extents(block)
        if b"".join(after[start:stop] for start, stop in extents) != data:
            bad.append(block)
        for start, stop in extents:
            rest[start:stop] = after[start:stop]
    return bad, rest != after
