"""Packing in CUDA memory: a launch for each width of span, queued on the current stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions
from kvferry_backends.layout import check_regions
from kvferry_backends.packing.kernel import launch
from kvferry_backends.packing.table import spans_by_width, word_bytes

GRID_SPANS_MAX = 65_535
"""CUDA's limit on a grid's second dimension."""


class CudaPacker:
    """Implements :class:`kvferry_backends.packing.packer.Packer` for CUDA memory.

    Everything is queued on the calling thread's current stream of the regions' device. A list
    that was made on one stream is ready on another only once that one waits for it.
    """

    def __init__(self, regions: Regions) -> None:
        """Bring the span table to the device, and compile the kernels.

        Raises:
            BackendError: they are not CUDA memory, or no pool of blocks.
        """
        if regions.kind != "cuda":
            raise BackendError(f"regions are {regions.kind!r} memory, not 'cuda'")
        check_regions(regions)
        if len(regions.spans) > GRID_SPANS_MAX:
            raise BackendError(f"{len(regions.spans)} spans are more than {GRID_SPANS_MAX}")
        self._regions = regions
        self._device = torch.device("cuda", regions.device)
        self._word_bytes = word_bytes(regions)
        with torch.cuda.device(self._device):
            self._groups = [
                (width, torch.tensor(table, dtype=torch.int64, device=self._device))
                for width, table in spans_by_width(regions).items()
            ]
            self._compile()

    def listed(self, blocks: Sequence[int]) -> Any:
        # Pinned, for a copy from pageable memory would wait for the device.
        ids = torch.tensor(list(blocks), dtype=torch.int32).pin_memory()
        return ids.to(self._device, non_blocking=True)

    def pack(self, listed: Any, start: int, stop: int, slot: int) -> None:
        self._launch(listed[start:stop], slot, pack=True)

    def unpack(self, listed: Any, start: int, stop: int, slot: int) -> None:
        self._launch(listed[start:stop], slot, pack=False)

    def _launch(self, ids: Any, slot: int, *, pack: bool) -> None:
        with torch.cuda.device(self._device):
            for width, table in self._groups:
                launch(table, ids, slot, width=width, word_bytes=self._word_bytes, pack=pack)

    def _compile(self) -> None:
        """Now, so that the first transfer does not wait for it.

        The slot is scratch memory that first receives block 0, so unpacking changes nothing.
        """
        scratch = torch.empty(
            self._regions.block_bytes + 64, dtype=torch.uint8, device=self._device
        )
        ids = torch.zeros(1, dtype=torch.int32, device=self._device)
        slot = -(-scratch.data_ptr() // 64) * 64
        for pack in (True, False):
            self._launch(ids, slot, pack=pack)
        torch.cuda.current_stream(self._device).synchronize()


def engine_point(device: int) -> Any:
    """An event after all that the engine has queued on this device so far.

    The engine runs on the device's default stream. A stream of ours waits for this event before
    it writes into a block that the engine has just given up, for a step that still runs may
    write there once more.
    """
    found = torch.device("cuda", device)
    with torch.cuda.device(found):
        event = torch.cuda.Event()
        event.record(torch.cuda.default_stream(found))
    return event
