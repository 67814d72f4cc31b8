"""One read over one backend at a time: posted, waited for, and fenced if it does not end well."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from kvferry.errors import BackendError
from kvferry.node.peers.wire import Granted
from kvferry.node.pull.failure import BackendFailed, Failed
from kvferry.node.pull.jobs import PullJob
from kvferry.ports.backend import Backend, Posted, ReadOutcome, ReadRequest

log = logging.getLogger("kvferry.puller")

WAIT_SLICE_S = 0.05
"""How soon a cancelled read is noticed."""
ANOTHER_MAY = frozenset({"unreachable", "error", "deadline", "busy"})
"""How a read may end on one backend and go well on another."""


class Control(NamedTuple):
    """What the reads of a pull need of its control side. Each may raise :class:`Failed`."""

    grant: Callable[[int, int], Granted]
    """A grant for exactly the job's blocks (first, count)."""
    renew: Callable[[], bool]
    """Keep the pin; False when the source does not answer."""
    left_s: Callable[[], float]
    """Seconds left for the pull; raises when there are none."""


class Piece(NamedTuple):
    """Blocks that one grant covers."""

    grant: bytes
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Reads:
    """The reads of one job, one after the other.

    Attributes:
        backend: the one in use, or used last; None before any.
        fence: how a backend was made unable to touch the blocks, if a read had to be ended.
        renew_every_s: how often the pin is renewed while a read takes long.
    """

    def __init__(self, job: PullJob, control: Control) -> None:
        self._job = job
        self._control = control
        self._posted: Posted | None = None
        self.backend: Backend | None = None
        self.fence = ""
        self.renew_every_s = float("inf")

    def read(
        self, backend: Backend, peer: bytes, piece: Piece, limit_s: float
    ) -> tuple[ReadOutcome, float]:
        """Read a piece: its outcome, and the milliseconds that it took.

        Raises:
            BackendFailed: the backend is fenced, and another one may do better.
            Failed: the pull is over; :meth:`end` is still to be called.
        """
        limit_s = min(limit_s, self._control.left_s())
        self.backend = backend
        began_s = time.monotonic()
        request = ReadRequest(
            transfer=self._job.transfer,
            peer=peer,
            grant=piece.grant,
            source_blocks=piece.sources,
            target_blocks=piece.targets,
            verify=self._job.verify,
            deadline_s=limit_s,
        )
        try:
            self._posted = posted = backend.post(request)
        except BackendError as error:
            raise BackendFailed("read", "error", str(error)) from error
        outcome = self._wait(posted, began_s + limit_s)
        took_ms = (time.monotonic() - began_s) * 1000
        if not outcome.error:
            self._posted = None
            return outcome, took_ms
        self.end()
        kind = BackendFailed if outcome.error in ANOTHER_MAY and self.fence else Failed
        raise kind("read", outcome.error, outcome.detail)

    def end(self) -> None:
        """Fence: after the return no byte of a target block changes any more."""
        if self._posted is None or self.backend is None:
            return
        posted, self._posted = self._posted, None
        try:
            posted.abort()
            self.fence = self.backend.capabilities.fence
        except Exception:
            log.exception("backend %s cannot end a read; closing it", self.backend.name)
            self.fence = _close(self.backend, self._job.transfer)

    def _wait(self, posted: Posted, limit_s: float) -> ReadOutcome:
        renew_at_s = time.monotonic() + self.renew_every_s
        while True:
            outcome = posted.wait(min(WAIT_SLICE_S, self._control.left_s()))
            if outcome is not None:
                return outcome
            self._control.left_s()
            now_s = time.monotonic()
            if now_s >= limit_s:
                return ReadOutcome(error="deadline", detail="it took longer than it was given")
            if now_s >= renew_at_s:
                # Unanswered, the bytes may still come, and done asks again: it alone decides.
                self._control.renew()
                renew_at_s = time.monotonic() + self.renew_every_s


def _close(backend: Backend, transfer: str) -> str:
    try:
        backend.close()
    except Exception:
        log.critical(
            "backend %s cannot be closed: blocks of transfer %s may still change; "
            "restart this engine",
            backend.name,
            transfer,
            exc_info=True,
        )
        return ""
    return "backend_closed"
