"""Pools of blocks in a torch tensor, which is how memory of a GPU is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tests.contract.pools import CANARY, Pool


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

    def fill(self, seed: str) -> None:
        """As the base class, but with one copy to the device."""
        staged = Pool(self.blocks, self.widths, self._strides[0] - self.widths[0])
        staged.fill(seed)
        self.write(0, bytes(staged.memory))

    def _settle(self) -> None:
        """Nothing of ours is under way when a backend begins."""
        if self._tensor.is_cuda:
            torch.cuda.synchronize(self._tensor.device)
