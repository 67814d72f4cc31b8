"""Copies between a GPU's pool and pinned host memory: a kernel packs, the copy engine moves.

The kernel that gathers scattered blocks of a peer's memory would reach pinned memory too, but its
programs then wait for the bus and keep their processors from the engine: matrix products beside it
took 1.8 times as long on an H200. Within the GPU it is done in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span
from kvferry_backends.host_tier.memory import block_by_block
from kvferry_backends.layout import check_regions, runs
from kvferry_backends.packing.cuda import engine_point
from kvferry_backends.peer.gather import WORD_BYTES, block_lists, launch, span_table
from kvferry_backends.peer.shapes import aligned, groups

STAGE_BYTES = 32 * 1024 * 1024
"""Of the GPU's memory, for whole blocks on their way."""


class CudaMover:
    """Implements :class:`kvferry_backends.host_tier.mover.Mover` for CUDA memory."""

    def __init__(self, engine: Regions, pool: Regions) -> None:
        """Bring the span tables to the device, and compile the kernel.

        Raises:
            BackendError: one of them is no pool of blocks, the host pool is not laid out block by
                block in a tensor of its owner's, or the kernel cannot run.
        """
        for regions in (engine, pool):
            check_regions(regions)
        self._owners = (engine, pool)
        self._number = engine.device
        self._device = torch.device("cuda", engine.device)
        self._groups = groups([span.length for span in engine.spans])
        self._slots = _slots(engine, pool)
        self._stage_blocks = max(1, STAGE_BYTES // engine.block_bytes)
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream()
            with torch.cuda.stream(self._stream):
                self._stage = torch.empty(
                    (self._stage_blocks, engine.block_bytes), dtype=torch.uint8, device=self._device
                )
                stage = block_by_block(self._stage.data_ptr(), engine)
                self._engine = self._tables(engine.spans)
                self._staged = self._tables(stage)
        both = (*engine.spans, *stage)
        self._wide = aligned([(s.address, s.stride, s.length) for s in both], WORD_BYTES)
        try:
            # Block 0 into slot 0, which nobody has yet: compiles, and shows that it works.
            self.to_host([0], [0])
        except Exception as error:
            # Triton fails in many ways, for example without a C compiler; none may end the engine.
            raise BackendError(
                f"the host tier's kernel cannot run here: {type(error).__name__}: {error}; "
                "set host_tier_bytes to 0"
            ) from error

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        with self._ending():
            for part in self._parts(len(blocks)):
                self._pack(self._engine, blocks[part], self._staged, range(len(blocks[part])))
                for at, first, count in _pieces(slots[part]):
                    target, source = self._slots[first : first + count], self._stage[at:]
                    target.copy_(source[:count], non_blocking=True)

    def to_engine(self, slots: Sequence[int], blocks: Sequence[int], point: Any) -> None:
        with self._ending():
            if point is not None:
                self._stream.wait_event(point)
            for part in self._parts(len(blocks)):
                for at, first, count in _pieces(slots[part]):
                    source, target = self._slots[first : first + count], self._stage[at:]
                    target[:count].copy_(source, non_blocking=True)
                self._pack(self._staged, range(len(blocks[part])), self._engine, blocks[part])

    def point(self) -> Any:
        return engine_point(self._number)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Run on our stream, and return when all of it has ended.

        The stream's order keeps a part from the stage until the one before has left it.
        """
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            try:
                yield
                done = torch.cuda.Event(blocking=True)
                done.record(self._stream)
            except RuntimeError:
                # Whatever was launched must have ended before anybody uses the blocks again.
                with suppress(RuntimeError):
                    self._stream.synchronize()
                raise
        done.synchronize()

    def _parts(self, count: int) -> Iterator[slice]:
        """As many blocks at a time as the stage holds."""
        for at in range(0, count, self._stage_blocks):
            yield slice(at, at + self._stage_blocks)

    def _pack(
        self,
        source: tuple[Any, ...],
        sources: Sequence[int],
        target: tuple[Any, ...],
        targets: Sequence[int],
    ) -> None:
        source_ids, target_ids = block_lists(sources, targets, self._device)
        for group, theirs, ours in zip(self._groups, source, target, strict=True):
            launch(theirs, ours, source_ids, target_ids, group.length, wide=self._wide)

    def _tables(self, spans: Sequence[Span]) -> tuple[Any, ...]:
        placed = [(span.address, span.stride) for span in spans]
        return tuple(
            span_table([placed[index] for index in group.spans], self._device)
            for group in self._groups
        )


def _slots(engine: Regions, pool: Regions) -> Any:
    """The host pool as a tensor of its owner: [slots, bytes of a block].

    Raises:
        BackendError: it is laid out in another way.
    """
    base = pool.spans[0].address
    if pool.spans != block_by_block(base, engine):
        raise BackendError("the host pool of CUDA memory is not laid out block by block")
    owner: Any = pool.owner
    first, size = base - int(owner.data_ptr()), pool.blocks * engine.block_bytes
    return owner[first : first + size].view(pool.blocks, engine.block_bytes)


def _pieces(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring slots as one piece: where it stands in the stage, its first slot, how many."""
    at = 0
    for first, count in runs(slots):
        yield at, first, count
        at += count
