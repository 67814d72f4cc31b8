"""Blocks straight from the source's pool into ours: a descriptor for each contiguous piece."""

from __future__ import annotations

import time

from kvferry.errors import BackendError
from kvferry_backends.control.calls import Call
from kvferry_backends.nixl import descriptors
from kvferry_backends.nixl.agent import Transfer
from kvferry_backends.nixl.job import POLL_S, Job
from kvferry_backends.nixl.links import Link
from kvferry_backends.nixl.rings import RingLoan
from kvferry_backends.nixl.wire import Done, encode

BATCHES_MAX = 2
"""Batches under way at one time: the next is posted while one is on the wire."""


class DirectFlow:
    """Implements :class:`kvferry_backends.nixl.job.Flow`."""

    def __init__(self, job: Job, link: Link, call: Call) -> None:
        self.transfers: list[Transfer] = []
        self.pieces = job.descriptors
        self.loan: RingLoan | None = None
        self._job = job
        self._link = link
        self._call = call

    def run(self) -> None:
        self._wait_for_engine()
        pool = self._job.pool
        for start, stop in descriptors.batches(
            len(self._job.targets), pool.widths, pool.regions.kind
        ):
            while len(self._under_way()) >= BATCHES_MAX:
                self._wait()
            self._post(start, stop)
        while self._under_way():
            self._wait()
        self._call.send(encode(Done()))

    def leave(self) -> None:
        return

    def _post(self, start: int, stop: int) -> None:
        job = self._job
        spans = len(job.pool.spans)
        job.check()
        self.transfers.append(
            self._link.agent.read(
                self._link.local,
                descriptors.positions(spans, job.pool.regions.blocks, job.targets[start:stop]),
                self._link.remote,
                descriptors.positions(spans, job.peer.blocks, job.sources[start:stop]),
            )
        )

    def _under_way(self) -> list[Transfer]:
        return [one for one in self.transfers if not one.done]

    def _wait(self) -> None:
        """Until the oldest batch has ended."""
        oldest = self._under_way()[0]
        while not self._link.agent.ended(oldest):
            self._job.check()
            if self._call.heard(POLL_S):
                self._call.receive()  # raises why the source ends it
                raise BackendError("the source speaks in the middle of a direct read")

    def _wait_for_engine(self) -> None:
        """Until the steps that were queued when the read was posted are over."""
        point = self._job.point
        while point is not None and not point.query():
            self._job.check()
            time.sleep(POLL_S)
