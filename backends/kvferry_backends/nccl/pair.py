"""The target's side of one pair: its reads, one after the other, on a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

from kvferry.errors import BackendError
from kvferry_backends.control.calls import Call, Calls
from kvferry_backends.nccl.local import Local
from kvferry_backends.nccl.messages import PROTOCOL, Go, PeerDescription, Want, decode, encode
from kvferry_backends.nccl.pipe import RECEIVER, Pipe
from kvferry_backends.nccl.pump import Check, drive, fence, settle
from kvferry_backends.nccl.reading import Read, Stopped
from kvferry_backends.nccl.seats import Seat, Seats
from kvferry_backends.tcp.stream import StreamError

IDLE_S = 300.0
"""A pair without a read for so long gives up its communicator and its thread."""

_log = logging.getLogger("kvferry.backends.nccl")


@dataclass(frozen=True)
class Job:
    """A read with all that its pair needs for it."""

    read: Read
    grant: bytes
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Pair:
    """One source that we read from.

    Its thread alone uses the communicator. When it has ended, :meth:`put` says so.
    """

    def __init__(self, local: Local, peer: PeerDescription, calls: Calls, seats: Seats) -> None:
        self.peer = peer
        self._local = local
        self._calls = calls
        self._seats = seats
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._over = False
        self._leaves = False
        self._seat: Seat | None = None
        self._pipe: Pipe | None = None
        self._link = ""
        self._number = 0
        self._dirty = False
        """Whether the communicator is in the midst of a transfer."""
        self._thread = threading.Thread(
            target=self._run, name=f"kvferry-nccl-read-{peer.address}", daemon=True
        )
        self._thread.start()

    def put(self, job: Job) -> bool:
        """Queue a read; False if this pair has ended and a new one has to be made."""
        with self._changed:
            if self._over:
                return False
            self._jobs.append(job)
            self._changed.notify()
            return True

    def leave(self) -> None:
        """Give up the communicator as soon as it is idle, and end."""
        with self._changed:
            self._leaves = True
            self._changed.notify()

    @property
    def over(self) -> bool:
        """Whether its thread has ended or is about to, with nothing left to do."""
        return self._over

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            if job.read.begin():
                self._serve(job)
            if self._seat is not None:
                self._seat.rest()
        self._drop()

    def _next(self) -> Job | None:
        give_up = time.monotonic() + IDLE_S
        with self._changed:
            while not self._jobs:
                left_s = give_up - time.monotonic()
                if self._leaves or left_s <= 0:
                    self._over = True
                    return None
                self._changed.wait(left_s)
            return self._jobs.popleft()

    def _serve(self, job: Job) -> None:
        """Carry out one read, and tell it how it went, once. Never raises."""
        read = job.read
        try:
            self._fetch(job)
        except (Stopped, StreamError) as error:
            word, detail = error.error, str(error)
        except BackendError as error:
            word, detail = "error", str(error)
        except Exception as error:
            _log.exception("transfer %s failed in a way not foreseen", read.transfer)
            word, detail = "error", repr(error)
        else:
            read.part_done(len(job.targets) * self._local.block_bytes)
            return
        # Without its fence a read has no outcome: its blocks stay in quarantine.
        if not (self._dirty or word == "unreachable") or self._drop():
            read.part_failed(word, f"{self.peer.address}: {detail}")

    def _fetch(self, job: Job) -> None:
        read, peer = job.read, self.peer
        self._sit(read.check)
        call = self._calls.begin(peer.address, peer.instance, read.deadline)
        try:
            read.attach(call)
            want = Want(
                protocol=PROTOCOL,
                target=self._local.instance,
                widths=self._local.widths,
                chunk_blocks=min(self._local.chunk_blocks(len(job.targets)), peer.slot_blocks),
                link=self._link,
                number=self._number if self._pipe is not None else -1,
            )
            call.open(
                transfer=read.transfer, grant=job.grant, blocks=job.sources, body=encode(want)
            )
            go = decode(call.receive(), Go)
            self._dirty = True
            self._move(job, go, want.chunk_blocks, call)
            call.finish()
            self._dirty = False
            self._number += 1
        finally:
            read.detach()
            call.close()

    def _move(self, job: Job, go: Go, chunk_blocks: int, call: Call) -> None:
        def check() -> None:
            job.read.check()
            if not call.stands():
                call.receive()  # gives the source's reason, where it has left one
                raise BackendError("the source spoke where it should have sent blocks")

        pipe = self._pipe_for(go, check)
        pipe.begin(job.targets)
        drive(pipe, self._local.ranges(len(job.targets), chunk_blocks), pipe.receive, check)

    def _pipe_for(self, go: Go, check: Check) -> Pipe:
        """The communicator over which the source sends."""
        if not go.unique_id:
            if self._pipe is None or (go.link, go.number) != (self._link, self._number):
                raise BackendError(f"the source sends number {go.number} over a link not ours")
            return self._pipe
        if self._pipe is not None and not self._end_pipe():
            raise BackendError("the last communicator has not ended")
        self._link, self._number = go.link, go.number
        self._pipe = pipe = self._local.device.open(go.unique_id, RECEIVER)
        settle(pipe, check)
        return pipe

    def _sit(self, check: Check) -> None:
        """Have a seat, which the communicator needs."""
        if self._seat is not None and not self._seat.wake():
            self._drop()
        if self._seat is None:
            self._seat = self._seats.take(self.leave, check)

    def _drop(self) -> bool:
        """Give up communicator and seat; whether nothing of them can touch a block any more."""
        fenced = self._end_pipe()
        if fenced and self._seat is not None:
            self._seat.release()
            self._seat = None
        return fenced

    def _end_pipe(self) -> bool:
        if self._pipe is not None:
            if not fence(self._pipe):
                return False
            self._pipe = None
        self._dirty = False
        return True
