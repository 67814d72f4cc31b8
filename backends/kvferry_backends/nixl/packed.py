"""Blocks in chunks that the source packs: one descriptor for each, and unpacked here."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Any

from kvferry.errors import BackendError
from kvferry_backends.control.calls import Call
from kvferry_backends.nixl.agent import Transfer
from kvferry_backends.nixl.job import POLL_S, Job
from kvferry_backends.nixl.links import Link
from kvferry_backends.nixl.rings import RingLoan
from kvferry_backends.nixl.wire import Begin, Ready, Taken, decode, encode
from kvferry_backends.packing.chunks import Chunk, chunks
from kvferry_backends.packing.lanes import Mark
from kvferry_backends.packing.packer import Packer


class PackedFlow:
    """Implements :class:`kvferry_backends.nixl.job.Flow`.

    Three things go on at a time: the source packs, chunks are read, chunks are unpacked.
    """

    def __init__(
        self, job: Job, link: Link, call: Call, begin: Begin, loan: RingLoan, size: int
    ) -> None:
        """``size`` is the number of blocks of a chunk."""
        if begin.slots < 1 or begin.slot_bytes < size * job.pool.regions.block_bytes:
            raise BackendError("the source's ring does not hold what it was asked for")
        self._plan: list[Chunk] = list(chunks(len(job.targets), size, loan.slots))
        self.transfers: list[Transfer] = []
        self.pieces = len(self._plan)
        self._job = job
        self._link = link
        self._call = call
        self._theirs = begin
        self.loan: RingLoan | None = loan
        self._ring = loan
        self._lane = job.pool.lane()
        self._ready = 0
        """Chunks that the source has packed, counted from the first."""
        self._taken = 0
        """Chunks that lie in our slots, or did."""
        self._unpacking: deque[Mark] = deque()
        self._in_place = 0
        """Chunks whose blocks are in place."""

    def run(self) -> None:
        job = self._job
        packer = job.pool.packer
        assert packer is not None
        if job.point is not None:
            self._lane.wait_for(job.point)
        listed = self._lane.run(lambda: packer.listed(job.targets))
        while self._in_place < len(self._plan):
            job.check()
            moved = self._post() or self._take(packer, listed)
            while self._unpacking and self._unpacking[0]():
                self._unpacking.popleft()
                self._in_place += 1
                moved = True
            self._listen(0.0 if moved else POLL_S)

    def leave(self) -> None:
        self._lane.drain()

    def _post(self) -> bool:
        """Read what is ready into slots that are free; whether there was anything."""
        began = len(self.transfers)
        while len(self.transfers) < self._ready:
            nth = len(self.transfers)
            if nth - self._in_place >= self._ring.slots:
                break
            chunk, theirs = self._plan[nth], self._theirs
            regions, peer = self._job.pool.regions, self._job.peer
            self.transfers.append(
                self._link.agent.read_piece(
                    self._link.name,
                    (self._ring.address(chunk.slot), regions.device),
                    (theirs.ring + nth % theirs.slots * theirs.slot_bytes, peer.device),
                    (regions.kind, peer.kind),
                    (chunk.stop - chunk.start) * regions.block_bytes,
                )
            )
        return len(self.transfers) > began

    def _take(self, packer: Packer, listed: Any) -> bool:
        """Unpack what has been read; whether there was anything."""
        began = self._taken
        while self._taken < len(self.transfers):
            if not self._link.agent.ended(self.transfers[self._taken]):
                break
            chunk = self._plan[self._taken]
            slot = self._ring.address(chunk.slot)
            self._taken += 1
            self._call.send(encode(Taken(self._taken)))
            self._lane.run(partial(packer.unpack, listed, chunk.start, chunk.stop, slot))
            self._unpacking.append(self._lane.mark())
        return self._taken > began

    def _listen(self, within_s: float) -> None:
        if self._taken == len(self._plan):
            # The source has ended by now, as it should; what is left goes on in our own memory.
            time.sleep(within_s)
            return
        if not self._call.heard(within_s):
            return
        word = decode(self._call.receive())
        if not isinstance(word, Ready) or not self._ready < word.chunks <= len(self._plan):
            raise BackendError(f"the source says {word} after {self._ready} chunks")
        self._ready = word.chunks
