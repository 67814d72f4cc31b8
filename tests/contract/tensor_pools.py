"""Pools of blocks in a torch tensor, which is how memory of a GPU is reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tests.contract.pools import CANARY, Pool, pattern_unit


class TensorPool(Pool):
    """A pool in CUDA memory. ``torch_device`` is a place for tests of this class itself."""

    kind = "cuda"

    def __init__(
        self,
        blocks: int,
        widths: Sequence[int],
        gap: int = 0,
        *,
        device: int = 0,
        torch_device: str = "",
    ) -> None:
        self._place = torch_device or f"cuda:{device}"
        super().__init__(blocks, widths, gap, device=device)

    def _allocate(self) -> tuple[int, object]:
        self._tensor: Any = torch.full((self.size,), CANARY, dtype=torch.uint8, device=self._place)
        self._settle()
        return int(self._tensor.data_ptr()), (self._tensor,)

    def read(self, start: int, stop: int) -> bytes:
        return bytes(self._tensor[start:stop].cpu().numpy().tobytes())

    def write(self, start: int, data: bytes) -> None:
        if data:
            piece = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            self._tensor[start : start + len(data)].copy_(piece)
            self._settle()

    def fill(self, seed: str, count: int | None = None) -> None:
        for view, wanted in self._patterned(seed, self.blocks if count is None else count):
            view.copy_(wanted)
        self._settle()

    def holds(self, seed: str, count: int) -> bool:
        return all(bool(torch.equal(view, wanted)) for view, wanted in self._patterned(seed, count))

    def _patterned(self, seed: str, count: int) -> Iterator[tuple[Any, Any]]:
        """Span by span: the bytes of the first blocks, and those of the pattern; made on the
        device, for a long pool copied from the host takes longer than all that is tested."""
        joined = bytearray(b"".join(pattern_unit(seed, block) for block in range(count)))
        units = torch.frombuffer(joined, dtype=torch.uint8).view(count, -1).to(self._place)
        taken = 0
        for base, stride, width in zip(self._bases, self._strides, self.widths, strict=True):
            places = torch.arange(taken, taken + width, device=self._place) % units.shape[1]
            yield self._tensor.as_strided((count, width), (stride, 1), base), units[:, places]
            taken += width

    def _settle(self) -> None:
        """Nothing of ours is under way when a backend begins."""
        if self._tensor.is_cuda:
            torch.cuda.synchronize(self._tensor.device)
