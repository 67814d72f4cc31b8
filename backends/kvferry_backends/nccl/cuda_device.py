"""The GPU: two streams and a ring for each communicator.

Why the fence holds. ``ncclCommAbort`` makes NCCL's kernels leave, wherever the other end is; what
was queued behind them runs on what lies in the ring. Once both streams are idle nothing of ours
runs, so no block changes. Nobody else can write to a block: the ring is not registered with NCCL,
so the other end's kernels write to NCCL's own buffers, and those to the ring.

Two streams let packing and moving overlap: ``packing`` runs the packing kernels, ``moving`` only
NCCL's, as NCCL asks for while a call has not settled. Events tie them together, so the host need
not look in between, which a busy engine would let it do only every few milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from kvferry.errors import BackendError, BackendUnavailable
from kvferry.ports.backend import Regions
from kvferry_backends.nccl.library import Nccl
from kvferry_backends.nccl.options import NcclOptions
from kvferry_backends.nccl.pipe import SENDER, PipeError
from kvferry_backends.packing.packer import make_packer
from kvferry_backends.packing.ring import make_ring

_log = logging.getLogger("kvferry.backends.nccl")


class CudaDevice:
    """Implements :class:`kvferry_backends.nccl.pipe.Device`."""

    def __init__(self, regions: Regions, options: NcclOptions, nccl: Nccl) -> None:
        """Compile the packing kernels for the pool.

        Raises:
            BackendError: the regions are not CUDA memory.
        """
        if regions.kind != "cuda":
            raise BackendError(f"backend nccl moves CUDA memory, not {regions.kind!r}")
        self.index = regions.device
        self.nccl = nccl
        self.version = nccl.version
        self.gpu = str(torch.cuda.get_device_properties(self.index).uuid)
        self.packer = make_packer(regions)
        self.block_bytes = regions.block_bytes
        self.slots = options.slots
        self.slot_bytes = options.slot_blocks(regions.block_bytes) * regions.block_bytes
        self.max_ctas = options.max_ctas

    def unique_id(self) -> bytes:
        with torch.cuda.device(self.index):
            return self.nccl.unique_id()

    def open(self, unique_id: bytes, rank: int) -> CudaPipe:
        return CudaPipe(self, unique_id, rank)


class CudaPipe:
    """Implements :class:`kvferry_backends.nccl.pipe.Pipe`."""

    def __init__(self, device: CudaDevice, unique_id: bytes, rank: int) -> None:
        self._device = device
        self._chunk = 0
        self._listed: Any = None
        self._then: Callable[[], None] | None = None
        """What the last call leaves to do once NCCL has taken it."""
        self._ends: deque[Any] = deque()
        """For each chunk under way, the event after it."""
        self._free: dict[int, Any] = {}
        """For each used slot, the event after which it may be filled again."""
        try:
            self._ring = make_ring(
                "cuda", device.index, slots=device.slots, slot_bytes=device.slot_bytes
            )
            with torch.cuda.device(device.index):
                # Their blocks are waited for, and they are short beside the engine's kernels.
                self._packing = torch.cuda.Stream(priority=-1)
                self._moving = torch.cuda.Stream(priority=-1)
                self._communicator = device.nccl.join(unique_id, rank, device.max_ctas)
        except PipeError:
            raise
        except (BackendError, RuntimeError) as error:
            role = "sending" if rank == SENDER else "receiving"
            raise PipeError(f"no ring for {role}: {error}") from error

    def settled(self) -> bool:
        if not self._communicator.ready():
            return False
        then, self._then = self._then, None
        if then is not None:
            with self._here():
                then()
        return True

    def begin(self, blocks: Sequence[int]) -> None:
        with self._here(), torch.cuda.stream(self._packing):
            self._listed = self._device.packer.listed(blocks)

    def send(self, start: int, stop: int) -> None:
        slot, size = self._next(start, stop)
        with self._here():
            with torch.cuda.stream(self._packing):
                self._until_free(self._packing, slot)
                self._device.packer.pack(self._listed, start, stop, self._ring.address(slot))
            self._moving.wait_event(self._packing.record_event())
            self._communicator.send(self._ring.part(slot, size), self._moving.cuda_stream)
        self._then = partial(self._ended, slot, self._moving)

    def receive(self, start: int, stop: int) -> None:
        slot, size = self._next(start, stop)
        with self._here():
            self._until_free(self._moving, slot)
            self._communicator.receive(self._ring.part(slot, size), self._moving.cuda_stream)
        self._then = partial(self._scatter, slot, start, stop)

    def queued(self) -> int:
        with self._here():
            while self._ends and self._ends[0].query():
                self._ends.popleft()
        return len(self._ends) + (self._then is not None)

    def abort(self) -> None:
        self._then = None
        with torch.cuda.device(self._device.index):
            self._communicator.abort()

    def drained(self) -> bool:
        try:
            return bool(self._packing.query() and self._moving.query())
        except RuntimeError as error:
            # The context is lost, and with it everything that ran in it.
            _log.error("the CUDA context is lost: %s", error)
            return True

    def close(self) -> None:
        self._listed = None
        self._free.clear()
        self._ends.clear()
        self._ring.free()

    def _next(self, start: int, stop: int) -> tuple[int, int]:
        """The slot of the next chunk, and the bytes that it takes there."""
        slot = self._chunk % self._ring.slots
        self._chunk += 1
        return slot, (stop - start) * self._device.block_bytes

    def _until_free(self, stream: Any, slot: int) -> None:
        event = self._free.get(slot)
        if event is not None:
            stream.wait_event(event)

    def _scatter(self, slot: int, start: int, stop: int) -> None:
        self._packing.wait_event(self._moving.record_event())
        with torch.cuda.stream(self._packing):
            self._device.packer.unpack(self._listed, start, stop, self._ring.address(slot))
        self._ended(slot, self._packing)

    def _ended(self, slot: int, stream: Any) -> None:
        event = stream.record_event()
        self._free[slot] = event
        self._ends.append(event)

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        """On our device; CUDA's errors become ours."""
        try:
            with torch.cuda.device(self._device.index):
                yield
        except RuntimeError as error:
            raise PipeError(f"CUDA failed: {error}") from error


def cuda_device_maker() -> Callable[[Regions, NcclOptions], CudaDevice]:
    """Makes devices of this process, or says why there can be none.

    Raises:
        BackendUnavailable: a GPU, nccl4py or libnccl is missing.
    """
    if not torch.cuda.is_available():
        raise BackendUnavailable("backend nccl needs a CUDA device, and torch sees none")
    return partial(CudaDevice, nccl=Nccl())
