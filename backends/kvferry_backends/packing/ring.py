"""Staging memory: slots of equal size, in host or in device memory."""

from __future__ import annotations

from typing import Any

from kvferry.errors import BackendError

ALIGN_BYTES = 4096


class Ring:
    """``slots`` slots of ``slot_bytes`` each in one allocation, aligned to a page."""

    def __init__(self, memory: Any, base: int, slots: int, slot_bytes: int) -> None:
        self._memory: Any = memory
        self.base = -(-base // ALIGN_BYTES) * ALIGN_BYTES
        self.slots = slots
        self.slot_bytes = slot_bytes

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes

    def address(self, slot: int) -> int:
        """Where this slot begins."""
        return self.base + slot * self.slot_bytes

    def part(self, slot: int, size: int) -> Any:
        """The first ``size`` bytes of a slot, as a tensor (CUDA) or an array (host)."""
        memory = self._memory
        origin = memory.data_ptr() if hasattr(memory, "data_ptr") else memory.ctypes.data
        begin = self.address(slot) - origin
        return memory[begin : begin + size]

    def free(self) -> None:
        """Give the memory back; no address of it may be used any more."""
        self._memory = None


def make_ring(kind: str, device: int, *, slots: int, slot_bytes: int) -> Ring:
    """A ring in memory of this kind. ``slot_bytes`` is rounded up to whole pages.

    Raises:
        BackendError: there is no memory for it.
    """
    slot_bytes = -(-slot_bytes // ALIGN_BYTES) * ALIGN_BYTES
    size = slots * slot_bytes + ALIGN_BYTES
    try:
        if kind == "cuda":
            import torch

            memory: Any = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))
            return Ring(memory, memory.data_ptr(), slots, slot_bytes)
        import numpy as np

        memory = np.empty(size, dtype=np.uint8)
        return Ring(memory, memory.ctypes.data, slots, slot_bytes)
    except (MemoryError, RuntimeError) as error:
        raise BackendError(
            f"no {size} bytes of {kind} memory for staging ({error}); lower slots or slot_bytes"
        ) from error
