"""A read as its thread sees it: what is wanted, of whom, and whether it may go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from kvferry.ports.backend import ReadRequest
from kvferry_backends.control.calls import Call
from kvferry_backends.nixl import descriptors
from kvferry_backends.nixl.agent import Transfer
from kvferry_backends.nixl.pool import PeerPool, Pool
from kvferry_backends.nixl.rings import RingLoan
from kvferry_backends.nixl.wire import PeerDescription
from kvferry_backends.packing.chunks import chunk_blocks
from kvferry_backends.posted import PartedRead
from kvferry_backends.tcp.stream import StreamError

POLL_S = 0.00005


class Read(PartedRead):
    """A read of one part, on one thread."""

    def __init__(self, transfer: str, source: str, on_end: Callable[[Any], None]) -> None:
        super().__init__(transfer, 1, on_end, source)
        self._call: Call | None = None

    def attach(self, call: Call) -> None:
        """From now on the read's end cuts this conversation."""
        with self._lock:
            self._call = call
            if self.over:
                call.cut()

    def _stop_parts(self) -> None:
        if self._call is not None:
            self._call.cut()


class Job:
    """One read: the request, checked, and both pools."""

    def __init__(
        self,
        read: Read,
        request: ReadRequest,
        peer: PeerDescription,
        theirs: PeerPool,
        pool: Pool,
        *,
        sources: Any,
        targets: Any,
    ) -> None:
        """``sources`` and ``targets`` are int32 arrays of blocks that fit the two pools."""
        self.read = read
        self.request = request
        self.peer = peer
        self.theirs = theirs
        self.pool = pool
        self.sources = sources
        self.targets = targets
        self.deadline = time.monotonic() + request.deadline_s
        self.point = pool.point()
        """Nothing may be written before the engine has passed this."""

    @property
    def byte_count(self) -> int:
        return len(self.targets) * self.pool.regions.block_bytes

    @property
    def descriptors(self) -> int:
        """Contiguous pieces of memory of a direct read."""
        return descriptors.count(self.sources, self.targets, self.pool.spans, self.theirs.spans)

    def chunk_blocks(self) -> int:
        """Blocks of a chunk that fits the slots of both sides; 0 where they cannot be packed."""
        rings, block_bytes = self.pool.rings, self.pool.regions.block_bytes
        slot_bytes = min(self.pool.chunk_max_bytes, self.peer.slot_bytes)
        if rings is None or slot_bytes < block_bytes:
            return 0
        return chunk_blocks(len(self.targets), block_bytes, slot_bytes, rings.slots)

    def check(self) -> None:
        """Raise what must end the read, if anything.

        Raises:
            StreamError: ``aborted`` or ``deadline``.
        """
        if self.read.over:
            raise StreamError("aborted", "the read ended")
        if time.monotonic() >= self.deadline:
            raise StreamError("deadline", "the deadline passed")


class Flow(Protocol):
    """One of the ways to bring the blocks."""

    transfers: list[Transfer]
    """All that were begun; those that are not ``done`` may still write."""
    pieces: int
    """Descriptors or chunks that it takes."""
    loan: RingLoan | None
    """The ring that it reads into; None where it reads into the blocks themselves."""

    def run(self) -> None:
        """Bring every block.

        Raises:
            StreamError: the conversation ended, or the read may not go on.
            BackendError: NIXL failed, or the source does not keep to the protocol.
        """
        ...

    def leave(self) -> None:
        """Return when nothing of it runs here any more. Always called, after the fence."""
        ...
