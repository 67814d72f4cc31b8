"""The puller: carries out the pulls of one worker rank on threads of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from kvferry.node.peers.client import PeerClient
from kvferry.node.pull.attempt import Attempt, Limits
from kvferry.node.pull.follower import Follower
from kvferry.node.pull.following import FollowAttempt
from kvferry.node.pull.jobs import PullJob, PullResult
from kvferry.node.pull.links import Links
from kvferry.ports.backend import Backend

__all__ = ["PullJob", "PullResult", "Puller"]

log = logging.getLogger("kvferry.puller")

QUEUE_MAX = 1024
FOLLOWS_MAX = 64
"""Pulls that follow a prefill at the same time. Each has a thread, for it mostly waits, and must
not keep another pull from running; more of them wait for one to end."""
JOIN_S = 15.0
"""A pull ends sooner than this once it is cancelled: one call to the source, then the fence."""


class _Entry:
    __slots__ = ("cancelled", "job", "over", "submitted_s")

    def __init__(self, job: PullJob) -> None:
        self.job = job
        self.cancelled = threading.Event()
        self.over = False
        """Cancelled in the queue: it has its result, and only its source is still to be told."""
        self.submitted_s = time.monotonic()


class Puller:
    """Pin, read, settle; and exactly one result for each submitted job, whatever happens.

    :meth:`submit`, :meth:`cancel` and :meth:`take` return at once and may be called by an engine
    thread. Backends stand in order of preference, which counts until a transfer is large enough
    to measure those that the source has too. ``block_bytes`` is the size of a block on this rank.
    ``follower`` is needed for jobs that follow a prefill, and closed by its owner.

    Attributes:
        unsafe_skip_done: a hook for the one test that proves why ``done`` exists. A pull that
            skips it can hand another prompt's KV to a request. Never set it anywhere else.
    """

    def __init__(
        self,
        client: PeerClient,
        backends: Sequence[Backend],
        *,
        threads: int = 4,
        pin_ms: int = 10_000,
        call_timeout_s: float = 2.0,
        block_bytes: int = 1,
        follower: Follower | None = None,
    ) -> None:
        self.unsafe_skip_done = False
        self._client = client
        self._links = Links(backends, block_bytes)
        self._limits = Limits(pin_ms=pin_ms, call_s=call_timeout_s)
        self._changed = threading.Condition()
        self._follower = follower
        self._queue: deque[_Entry] = deque()
        self._follows: deque[_Entry] = deque()
        self._follow_threads: list[threading.Thread] = []
        self._entries: dict[str, _Entry] = {}
        self._results: deque[PullResult] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"kvferry-pull-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: PullJob) -> None:
        """Queue a job; its result comes out of :meth:`take`.

        Raises:
            ValueError: a job of the same transfer has not ended yet; that one goes on.
        """
        with self._changed:
            if job.transfer in self._entries:
                raise ValueError(f"transfer {job.transfer} is under way already")
            if self._closed:
                self._results.append(_not_run(job, "aborted", "the puller is closed"))
            elif len(self._queue) + len(self._follows) >= QUEUE_MAX:
                self._results.append(_not_run(job, "error", f"{QUEUE_MAX} pulls wait already"))
            else:
                entry = _Entry(job)
                self._entries[job.transfer] = entry
                self._queue.append(entry)
                self._changed.notify()

    def cancel(self, transfer: str) -> None:
        """End a job soon, unless it just ended; its one result comes all the same."""
        with self._changed:
            entry = self._entries.get(transfer)
            if entry is None:
                return
            entry.cancelled.set()
            if entry in self._queue or entry in self._follows:
                entry.over = True
                self._finish(entry, _not_run(entry.job, "aborted", "cancelled by the engine"))

    def take(self) -> list[PullResult]:
        """The results since the last call, oldest first. Never blocks on a pull."""
        with self._changed:
            results = list(self._results)
            self._results.clear()
        return results

    @property
    def pending(self) -> int:
        """Jobs without a result yet."""
        with self._changed:
            return len(self._entries)

    def close(self) -> None:
        """Cancel every job, fence every read, join every thread. :meth:`take` works on."""
        with self._changed:
            self._closed = True
            for entry in (*self._queue, *self._follows):
                if not entry.over:
                    self._finish(entry, _not_run(entry.job, "aborted", "the puller is closed"))
            self._queue.clear()
            self._follows.clear()
            for entry in self._entries.values():
                entry.cancelled.set()
            self._changed.notify_all()
        deadline_s = time.monotonic() + JOIN_S
        _join(self._threads, deadline_s)
        # Only the threads just joined start others.
        _join(list(self._follow_threads), deadline_s)

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            if entry.job.follow and self._follower is not None and not entry.over:
                self._follow(entry)
            else:
                self._carry_out(entry)

    def _work_follows(self) -> None:
        while (entry := self._next_follow()) is not None:
            self._carry_out(entry)

    def _carry_out(self, entry: _Entry) -> None:
        attempt = self._attempt(entry)
        if entry.over:
            attempt.say_abort("aborted")
            return
        result = attempt.run()
        with self._changed:
            self._finish(entry, result)
        if not result.ok:
            attempt.say_abort(result.reason)

    def _attempt(self, entry: _Entry) -> Attempt:
        common = (entry.job, self._client, self._links, self._limits)
        if entry.job.follow and self._follower is not None:
            return FollowAttempt(
                *common,
                follower=self._follower,
                cancelled=entry.cancelled,
                submitted_s=entry.submitted_s,
                skip_done=self.unsafe_skip_done,
            )
        return Attempt(
            *common,
            cancelled=entry.cancelled,
            submitted_s=entry.submitted_s,
            skip_done=self.unsafe_skip_done,
        )

    def _next(self) -> _Entry | None:
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _follow(self, entry: _Entry) -> None:
        """Give it to a thread that may wait. Started here: an engine's thread must not wait."""
        with self._changed:
            if self._closed:
                self._finish(entry, _not_run(entry.job, "aborted", "the puller is closed"))
                return
            self._follows.append(entry)
            if len(self._follow_threads) >= FOLLOWS_MAX:
                return
            thread = threading.Thread(
                target=self._work_follows, name="kvferry-pull-follow", daemon=True
            )
            self._follow_threads.append(thread)
        thread.start()

    def _next_follow(self) -> _Entry | None:
        with self._changed:
            if self._follows:
                return self._follows.popleft()
            self._follow_threads.remove(threading.current_thread())
            return None

    def _finish(self, entry: _Entry, result: PullResult) -> None:
        """The one place where a job gets its result. Needs the lock."""
        del self._entries[entry.job.transfer]
        self._results.append(result)


def _join(threads: list[threading.Thread], deadline_s: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
        if thread.is_alive():
            log.error("%s did not end within %s s", thread.name, JOIN_S)


def _not_run(job: PullJob, reason: str, detail: str) -> PullResult:
    return PullResult(
        transfer=job.transfer,
        request=job.request,
        ok=False,
        failed_blocks=job.target_blocks,
        stage="pin",
        reason=reason,
        detail=detail,
    )
