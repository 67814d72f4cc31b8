"""What the protocol of this backend asks of a device; :mod:`cuda_pipe` is the real one.

A pipe carries the bytes of one direction between two GPUs. It has a communicator of two ranks,
a ring of staging slots, and streams on which the device gathers, moves and scatters chunk after
chunk by itself: the host only queues work and looks how far it has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvferry.errors import BackendError

SENDER = 0
"""The source's rank."""
RECEIVER = 1
"""The target's rank."""


class PipeError(BackendError):
    """NCCL or CUDA failed. The pipe can only be aborted."""


class Pipe(Protocol):
    """One direction between two GPUs. Used by one thread.

    Chunks go through in the order of the calls, which must be the same on both ends. A slot is
    filled again only when its last chunk has left it; the device sees to that.
    """

    def settled(self) -> bool:
        """Whether the last call has been taken and the next may be made. Never blocks.

        Raises:
            PipeError: the communicator failed.
        """
        ...

    def begin(self, blocks: Sequence[int]) -> None:
        """The next chunks are of these blocks of our pool.

        Neither end waits for the engine's own work on its device; why that is sound on both is
        said in :mod:`kvferry_backends.peer`.

        Raises:
            PipeError: CUDA failed.
        """
        ...

    def send(self, start: int, stop: int) -> None:
        """Queue one chunk: gather the blocks at these positions into a slot, send the slot.

        Raises:
            PipeError: NCCL or CUDA refused.
        """
        ...

    def receive(self, start: int, stop: int) -> None:
        """Queue one chunk: receive into a slot, scatter it to the blocks at these positions.

        Raises:
            PipeError: NCCL or CUDA refused.
        """
        ...

    def queued(self) -> int:
        """Chunks that have not gone all the way through. Never blocks.

        Raises:
            PipeError: CUDA failed.
        """
        ...

    def abort(self) -> None:
        """Make everything queued end soon, whatever the other end does. May be called twice.

        What is queued may still scatter garbage until :meth:`drained`. Never raises.
        """
        ...

    def drained(self) -> bool:
        """Whether nothing of ours runs on the device any more, so no block can change."""
        ...

    def close(self) -> None:
        """Give the memory back. Only after an abort, and once drained."""
        ...


class Device(Protocol):
    """Our GPU with the registered pool on it. Used by several threads."""

    gpu: str
    """Names the GPU among all; NCCL does not connect a GPU with itself."""
    version: str
    """NCCL's; both ends must have the same."""

    def unique_id(self) -> bytes:
        """A new communicator's name; the sender makes it, and hands it to the receiver.

        Raises:
            PipeError: NCCL cannot make one.
        """
        ...

    def open(self, unique_id: bytes, rank: int) -> Pipe:
        """Begin to connect with the other rank. Returns at once; ``settled`` says when it is done.

        Raises:
            PipeError: there is no memory for the ring, or NCCL refuses.
        """
        ...
