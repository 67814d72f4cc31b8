"""Copies between a GPU's pool and pinned host memory: a kernel on a stream of our own.

Pinned memory has one address for the host and the GPU, so the kernel that gathers scattered
blocks of a peer's memory gathers them into it, and out of it, just as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions
from kvferry_backends.layout import check_regions
from kvferry_backends.packing.cuda import engine_point
from kvferry_backends.peer.gather import WORD_BYTES, block_lists, launch, span_table
from kvferry_backends.peer.shapes import aligned, groups

PIECE_BLOCKS = 32
"""Blocks of one launch towards the host. Its programs wait for the bus and keep their processors
from the engine meanwhile, so they are few at a time."""


class CudaMover:
    """Implements :class:`kvferry_backends.host_tier.mover.Mover` for CUDA memory."""

    def __init__(self, engine: Regions, pool: Regions) -> None:
        """Bring the span tables to the device, and compile the kernel.

        Raises:
            BackendError: one of them is no pool of blocks, or the kernel cannot run.
        """
        for regions in (engine, pool):
            check_regions(regions)
        self._owners = (engine, pool)
        self._number = engine.device
        self._device = torch.device("cuda", engine.device)
        self._groups = groups([span.length for span in engine.spans])
        both = (*engine.spans, *pool.spans)
        self._wide = aligned([(s.address, s.stride, s.length) for s in both], WORD_BYTES)
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream()
            with torch.cuda.stream(self._stream):
                self._engine = self._tables(engine)
                self._pool = self._tables(pool)
        try:
            # Block 0 into slot 0, which nobody has yet: compiles, and shows that it works.
            self._move(self._engine, [0], self._pool, [0])
        except Exception as error:
            # Triton fails in many ways, for example without a C compiler; none may end the engine.
            raise BackendError(
                f"the host tier's kernel cannot run here: {type(error).__name__}: {error}; "
                "set host_tier_bytes to 0"
            ) from error

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        for at in range(0, len(blocks), PIECE_BLOCKS):
            part = slice(at, at + PIECE_BLOCKS)
            self._move(self._engine, blocks[part], self._pool, slots[part])

    def to_engine(self, slots: Sequence[int], blocks: Sequence[int], point: Any) -> None:
        if point is not None:
            self._stream.wait_event(point)
        self._move(self._pool, slots, self._engine, blocks)

    def point(self) -> Any:
        return engine_point(self._number)

    def _move(
        self,
        source: tuple[Any, ...],
        sources: Sequence[int],
        target: tuple[Any, ...],
        targets: Sequence[int],
    ) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            source_ids, target_ids = block_lists(sources, targets, self._device)
            try:
                for group, theirs, ours in zip(self._groups, source, target, strict=True):
                    launch(theirs, ours, source_ids, target_ids, group.length, wide=self._wide)
                done = torch.cuda.Event(blocking=True)
                done.record(self._stream)
            except RuntimeError:
                # Whatever was launched must have ended before anybody uses the blocks again.
                with suppress(RuntimeError):
                    self._stream.synchronize()
                raise
        done.synchronize()

    def _tables(self, regions: Regions) -> tuple[Any, ...]:
        placed = [(span.address, span.stride) for span in regions.spans]
        return tuple(
            span_table([placed[index] for index in group.spans], self._device)
            for group in self._groups
        )
