"""Pools of blocks to read from and into, and whether the bytes that came are the right ones."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_char
from typing import Any, NamedTuple, Protocol

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span

POISON = 0xA5
"""What target blocks hold before a read that is checked."""
_UNIT_BYTES = 64


def pattern(seed: str, piece: int, size: int) -> bytes:
    """The bytes of a piece of a block: different in every piece of every pool."""
    unit = hashlib.blake2b(f"{seed}:{piece}".encode(), digest_size=_UNIT_BYTES).digest()
    return (unit * (size // _UNIT_BYTES + 1))[:size]


class Shape(NamedTuple):
    """Blocks as engines have them: a piece of each block in every layer's own piece of memory."""

    blocks: int
    layers: int
    piece_bytes: int

    @property
    def pool_bytes(self) -> int:
        """All layers of all blocks."""
        return self.blocks * self.layers * self.piece_bytes

    def pieces(self, block: int) -> Iterator[int]:
        """Where the block's pieces stand among all pieces of a pool, layer by layer."""
        return iter(range(block, self.blocks * self.layers, self.blocks))

    def spans(self, address: int) -> tuple[Span, ...]:
        """One span for each layer, one after the other from ``address`` on."""
        size, layer_bytes = self.piece_bytes, self.blocks * self.piece_bytes
        return tuple(
            Span(address=address + layer * layer_bytes, stride=size, length=size)
            for layer in range(self.layers)
        )


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

    def __init__(self, shape: Shape, seed: str) -> None:
        self._shape = shape
        self._memory = mmap.mmap(-1, shape.pool_bytes)
        address = addressof(c_char.from_buffer(self._memory))
        for piece in range(shape.blocks * shape.layers):
            self._put(piece, pattern(seed, piece, shape.piece_bytes))
        self.regions = Regions(spans=shape.spans(address), blocks=shape.blocks, owner=self._memory)

    def poison(self, blocks: Sequence[int]) -> None:
        poison = bytes([POISON]) * self._shape.piece_bytes
        for block in blocks:
            for piece in self._shape.pieces(block):
                self._put(piece, poison)

    def wrong(self, blocks: Sequence[int], seed: str, sources: Sequence[int]) -> list[int]:
        pieces, size = self._shape.pieces, self._shape.piece_bytes
        return [
            block
            for block, source in zip(blocks, sources, strict=True)
            if any(
                self._memory[ours * size : (ours + 1) * size] != pattern(seed, theirs, size)
                for ours, theirs in zip(pieces(block), pieces(source), strict=True)
            )
        ]

    def _put(self, piece: int, data: bytes) -> None:
        size = self._shape.piece_bytes
        self._memory[piece * size : (piece + 1) * size] = data


class CudaPool:
    """In memory of one GPU, filled and compared there: a pool may be most of it."""

    def __init__(self, shape: Shape, seed: str, device: int) -> None:
        """
        Raises:
            BackendError: torch is missing or sees no such device, or its memory is full.
        """
        self._torch = torch = cuda_torch(device)
        self._device = torch.device("cuda", device)
        self._shape = shape
        try:
            self._pieces: Any = torch.empty(
                (shape.layers, shape.blocks, shape.piece_bytes),
                dtype=torch.uint8,
                device=self._device,
            )
            for layer in range(shape.layers):
                self._pieces[layer] = self._expected(layer, range(shape.blocks), seed)
        except torch.OutOfMemoryError as error:
            raise BackendError(
                f"cuda:{device} has no room for {shape.pool_bytes} bytes and one layer more; "
                "give a smaller --pool-bytes"
            ) from error
        torch.cuda.synchronize(device)
        self.regions = Regions(
            spans=shape.spans(int(self._pieces.data_ptr())),
            blocks=shape.blocks,
            kind="cuda",
            device=device,
            owner=(self._pieces,),
        )

    def poison(self, blocks: Sequence[int]) -> None:
        self._pieces.index_fill_(1, self._ids(blocks), POISON)
        self._torch.cuda.synchronize(self._device)

    def wrong(self, blocks: Sequence[int], seed: str, sources: Sequence[int]) -> list[int]:
        ids = self._ids(blocks)
        differ = self._torch.zeros(len(blocks), dtype=self._torch.bool, device=self._device)
        for layer in range(self._shape.layers):
            came = self._pieces[layer].index_select(0, ids)
            differ |= (came != self._expected(layer, sources, seed)).any(dim=1)
        return [block for block, is_wrong in zip(blocks, differ.tolist(), strict=True) if is_wrong]

    def _ids(self, blocks: Sequence[int]) -> Any:
        return self._torch.tensor(list(blocks), device=self._device)

    def _expected(self, layer: int, blocks: Sequence[int], seed: str) -> Any:
        """What one layer of these blocks holds at first: [blocks, piece bytes]."""
        first, size = layer * self._shape.blocks, self._shape.piece_bytes
        units = b"".join(pattern(seed, first + block, _UNIT_BYTES) for block in blocks)
        found = self._torch.frombuffer(bytearray(units), dtype=self._torch.uint8)
        found = found.to(self._device).view(len(blocks), _UNIT_BYTES)
        return found.repeat(1, -(-size // _UNIT_BYTES))[:, :size]


def make_pool(memory: str, shape: Shape, seed: str, device: int) -> Pool:
    """A filled pool in ``host`` or ``cuda`` memory.

    Raises:
        BackendError: there is no such memory, or not enough of it.
    """
    return CudaPool(shape, seed, device) if memory == "cuda" else HostPool(shape, seed)


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
