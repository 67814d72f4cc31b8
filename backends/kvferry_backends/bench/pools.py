"""Pools of blocks to read from and into, and whether the bytes that came are the right ones."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from ctypes import addressof, c_char
from typing import Any, Protocol

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span

POISON = 0xA5
"""What target blocks hold before a read that is checked."""
_UNIT_BYTES = 64


def pattern(seed: str, block: int, size: int) -> bytes:
    """The bytes of a block: different in every block of every pool."""
    unit = hashlib.blake2b(f"{seed}:{block}".encode(), digest_size=_UNIT_BYTES).digest()
    return (unit * (size // _UNIT_BYTES + 1))[:size]


class Pool(Protocol):
    """Equal blocks in one piece of memory, first filled with the pattern of ``seed``."""

    regions: Regions

    def poison(self, blocks: Sequence[int]) -> None:
        """Overwrite these blocks."""
        ...

    def wrong(self, blocks: Sequence[int], seed: str, sources: Sequence[int]) -> list[int]:
        """Those of ``blocks`` that do not hold block ``sources[i]`` of the pool ``seed``."""
        ...


class HostPool:
    """In memory of this process."""

    def __init__(self, blocks: int, block_bytes: int, seed: str) -> None:
        self._size = block_bytes
        self._memory = mmap.mmap(-1, blocks * block_bytes)
        address = addressof(c_char.from_buffer(self._memory))
        for block in range(blocks):
            self._put(block, pattern(seed, block, block_bytes))
        span = Span(address=address, stride=block_bytes, length=block_bytes)
        self.regions = Regions(spans=(span,), blocks=blocks, owner=self._memory)

    def poison(self, blocks: Sequence[int]) -> None:
        poison = bytes([POISON]) * self._size
        for block in blocks:
            self._put(block, poison)

    def wrong(self, blocks: Sequence[int], seed: str, sources: Sequence[int]) -> list[int]:
        size = self._size
        return [
            block
            for block, source in zip(blocks, sources, strict=True)
            if self._memory[block * size : (block + 1) * size] != pattern(seed, source, size)
        ]

    def _put(self, block: int, data: bytes) -> None:
        self._memory[block * self._size : (block + 1) * self._size] = data


class CudaPool:
    """In memory of one GPU."""

    def __init__(self, blocks: int, block_bytes: int, seed: str, device: int) -> None:
        """
        Raises:
            BackendError: torch is missing or sees no such device, or its memory is full.
        """
        self._torch = torch = cuda_torch(device)
        self._size = block_bytes
        filled = bytearray(blocks * block_bytes)
        for block in range(blocks):
            filled[block * block_bytes : (block + 1) * block_bytes] = pattern(
                seed, block, block_bytes
            )
        try:
            staged = torch.frombuffer(filled, dtype=torch.uint8)
            self._tensor: Any = staged.to(f"cuda:{device}").view(blocks, block_bytes)
        except torch.OutOfMemoryError as error:
            raise BackendError(
                f"cuda:{device} has no room for {len(filled)} bytes; give a smaller --pool-bytes"
            ) from error
        torch.cuda.synchronize(device)
        address = int(self._tensor.data_ptr())
        self.regions = Regions(
            spans=(Span(address=address, stride=block_bytes, length=block_bytes),),
            blocks=blocks,
            kind="cuda",
            device=device,
            owner=(self._tensor,),
        )

    def poison(self, blocks: Sequence[int]) -> None:
        torch = self._torch
        ids = torch.tensor(list(blocks), device=self._tensor.device)
        self._tensor.index_fill_(0, ids, POISON)
        torch.cuda.synchronize(self._tensor.device)

    def wrong(self, blocks: Sequence[int], seed: str, sources: Sequence[int]) -> list[int]:
        ids = self._torch.tensor(list(blocks), device=self._tensor.device)
        came = self._tensor.index_select(0, ids).cpu().numpy()
        return [
            block
            for row, (block, source) in enumerate(zip(blocks, sources, strict=True))
            if came[row].tobytes() != pattern(seed, source, self._size)
        ]


def make_pool(memory: str, blocks: int, block_bytes: int, seed: str, device: int) -> Pool:
    """A filled pool in ``host`` or ``cuda`` memory.

    Raises:
        BackendError: there is no such memory, or not enough of it.
    """
    if memory == "cuda":
        return CudaPool(blocks, block_bytes, seed, device)
    return HostPool(blocks, block_bytes, seed)


def cuda_torch(device: int) -> Any:
    """torch, where it sees this CUDA device.

    Raises:
        BackendError: it is missing, or sees no such device.
    """
    try:
        import torch
    except ImportError as error:
        raise BackendError(f"--memory cuda needs torch: {error}") from error
    count = torch.cuda.device_count()
    if not 0 <= device < count:
        raise BackendError(f"torch sees {count} CUDA devices here, and no cuda:{device}")
    return torch
