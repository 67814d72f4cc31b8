"""The host tier of one rank: its memory, and the thread that copies blocks into it and back."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from kvferry.node.pull.puller import PullResult
from kvferry.ports.backend import Regions, Verify
from kvferry_backends import digest
from kvferry_backends.host_tier.mover import Mover
from kvferry_backends.layout import HostPool
from kvferry_connectors.vllm.metadata import CopyOrder, LoadJob, RankCopied

log = logging.getLogger("kvferry.vllm")

BACKEND = "host_copy"
"""How a load from a node's own host tier is called where a backend's name belongs."""
QUEUE_MAX = 1024
"""Loads and copies that can wait; the scheduler side orders far fewer."""
JOIN_S = 15.0


class Damaged(Exception):
    """A block in the host tier is not what was copied there."""


class _Load:
    __slots__ = ("cancelled", "job", "point", "submitted_s")

    def __init__(self, job: LoadJob, point: Any) -> None:
        self.job = job
        self.point = point
        self.cancelled = False
        self.submitted_s = time.monotonic()


class HostWorker:
    """Copies on a thread of its own; loads, for which requests wait, before copies to the host.

    All methods return at once and may be called by an engine thread. Each load and each copy is
    reported exactly once.
    """

    def __init__(self, mover: Mover, pool: Regions, rank: int, verify: Verify) -> None:
        self._mover = mover
        self._pool = HostPool(pool)
        self._rank = rank
        self._verify = verify
        self._digest = digest.by_name(digest.names()[0])
        self._digests: dict[int, int] = {}
        """By slot, of the blocks that were chosen to be verified."""
        self._changed = threading.Condition()
        self._loads: deque[_Load] = deque()
        self._open: dict[str, _Load] = {}
        self._copies: deque[CopyOrder] = deque()
        self._loaded: deque[PullResult] = deque()
        self._copied: deque[RankCopied] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="kvferry-host-tier", daemon=True)
        self._thread.start()

    def copy(self, order: CopyOrder) -> None:
        """Copy blocks to the host; the outcome comes out of :meth:`take_copied`."""
        with self._changed:
            if self._closed or len(self._copies) >= QUEUE_MAX:
                self._copied.append(RankCopied(order.id, self._rank, False, "too many wait"))
                return
            self._copies.append(order)
            self._changed.notify()

    def load(self, job: LoadJob) -> None:
        """Copy slots into the engine's blocks; the outcome comes out of :meth:`take_loaded`."""
        load = _Load(job, self._mover.point())
        with self._changed:
            if self._closed or len(self._loads) >= QUEUE_MAX:
                self._loaded.append(_failed(load, "error", "the host tier takes no more loads"))
                return
            self._open[job.transfer] = load
            self._loads.append(load)
            self._changed.notify()

    def cancel(self, transfer: str) -> None:
        """Nobody wants the blocks any more; the outcome comes all the same."""
        with self._changed:
            load = self._open.get(transfer)
            if load is not None:
                load.cancelled = True

    def take_loaded(self) -> list[PullResult]:
        """Loads that ended since the last call."""
        return _drain(self._loaded)

    def take_copied(self) -> list[RankCopied]:
        """Copies to the host that ended since the last call."""
        return _drain(self._copied)

    def close(self) -> None:
        """Finish the copy under way, drop the others and join the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            log.error("%s did not end within %s s", self._thread.name, JOIN_S)

    # --- our thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._next()) is not None:
            if isinstance(work, _Load):
                result = self._run_load(work)
                with self._changed:
                    del self._open[work.job.transfer]
                    self._loaded.append(result)
            else:
                self._copied.append(self._run_copy(work))

    def _next(self) -> _Load | CopyOrder | None:
        with self._changed:
            while not self._closed:
                if self._loads:
                    return self._loads.popleft()
                if self._copies:
                    return self._copies.popleft()
                self._changed.wait()
            return None

    def _run_copy(self, order: CopyOrder) -> RankCopied:
        try:
            self._mover.to_host(order.blocks, order.slots)
            self._note_digests(str(order.id), order.slots)
        except Exception as error:
            # A block that could not be copied is only not kept; the engine must not hear of it.
            log.exception("copy %s to the host tier failed", order.id)
            return RankCopied(order.id, self._rank, False, f"{type(error).__name__}: {error}")
        return RankCopied(order.id, self._rank, True)

    def _run_load(self, load: _Load) -> PullResult:
        job, began_s = load.job, time.monotonic()
        if load.cancelled:
            return _failed(load, "aborted", "cancelled by the engine")
        if began_s - load.submitted_s > job.deadline_ms / 1000:
            return _failed(load, "deadline", f"{job.deadline_ms} ms have passed")
        slots = job.host_slots or ()
        count = len(slots)
        try:
            verified = self._check(slots)
            if slots:
                self._mover.to_engine(slots, job.target_blocks[:count], load.point)
        except Damaged as damaged:
            return _failed(load, "digest", str(damaged))
        except Exception as error:
            log.exception("load %s from the host tier failed", job.transfer)
            return _failed(load, "error", f"{type(error).__name__}: {error}")
        now_s = time.monotonic()
        return PullResult(
            transfer=job.transfer,
            request=job.request,
            ok=True,
            count=count,
            failed_blocks=job.target_blocks[count:],
            backend=BACKEND,
            bytes=count * self._pool.block_bytes,
            verified_blocks=verified,
            host_blocks=count,
            read_ms=(now_s - began_s) * 1000,
            total_ms=(now_s - load.submitted_s) * 1000,
        )

    def _note_digests(self, name: str, slots: Sequence[int]) -> None:
        for slot in slots:
            self._digests.pop(slot, None)
        for nth in digest.chosen(self._verify, name, len(slots), 0, len(slots)):
            self._digests[slots[nth]] = self._digest(self._pool.block(slots[nth]))

    def _check(self, slots: Sequence[int]) -> int:
        """Compare the blocks that have a digest with it; returns how many there were."""
        verified = 0
        for slot in slots:
            known = self._digests.get(slot)
            if known is None:
                continue
            if self._digest(self._pool.block(slot)) != known:
                raise Damaged(f"slot {slot} of the host tier does not hold what was copied there")
            verified += 1
        return verified


def _drain(queue: deque[Any]) -> list[Any]:
    """What is in the queue, whose other end another thread has."""
    return [queue.popleft() for _ in range(len(queue))]


def _failed(load: _Load, reason: str, detail: str) -> PullResult:
    job = load.job
    return PullResult(
        transfer=job.transfer,
        request=job.request,
        ok=False,
        failed_blocks=job.target_blocks,
        stage="read",
        reason=reason,
        detail=detail,
        backend=BACKEND,
        total_ms=(time.monotonic() - load.submitted_s) * 1000,
    )
