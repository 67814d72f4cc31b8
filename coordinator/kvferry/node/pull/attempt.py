"""One pull from pin to done, on the thread that calls it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from kvferry.errors import BackendError, PeerRefused, PeerUnreachable
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.wire import Abort, AnyFrame, Done, Granted, Pin, Renew, Settled
from kvferry.node.pull.jobs import PullJob, PullResult
from kvferry.ports.backend import Backend, Posted, ReadOutcome, ReadRequest

log = logging.getLogger("kvferry.puller")

ResultT = TypeVar("ResultT")

WAIT_SLICE_S = 0.05
"""How soon a cancelled read is noticed."""
RENEW_TIMEOUT_S = 1.0
ABORT_TIMEOUT_S = 0.5
NOBODY_LISTENS = "nobody listens"
"""How the detail of an unreachable source begins whose process is gone, not slow."""
NOTHING_TO_ABORT = frozenset({"ended", "incarnation", "bad_key", "space_mismatch", "protocol"})
"""Refusals after which no pin of this transfer can stand."""


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one pull."""

    pin_ms: int = 10_000
    """Asked of the source at a time; renewed after each third."""
    call_s: float = 2.0
    """For one answer of the source."""


class Failed(Exception):
    """The pull ends without use; carries ``stage``, ``reason`` and ``detail``."""

    def __init__(self, stage: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{stage}: {reason}: {detail}")
        self.stage = stage
        self.reason = reason
        self.detail = detail


class Attempt:
    """Runs one job. :meth:`run` never raises and returns after the fence."""

    def __init__(
        self,
        job: PullJob,
        client: PeerClient,
        backends: Sequence[Backend],
        limits: Limits,
        *,
        cancelled: threading.Event,
        submitted_s: float,
        skip_done: bool = False,
    ) -> None:
        self._job = job
        self._client = client
        self._backends = backends
        self._limits = limits
        self._cancelled = cancelled
        self._submitted_s = submitted_s
        self._deadline_s = submitted_s + job.deadline_s
        self._skip_done = skip_done
        self._stage = "pin"
        self._took_ms: dict[str, float] = {}
        self._backend: Backend | None = None
        self._posted: Posted | None = None
        self._fence = ""
        self._answers = True

    def run(self) -> PullResult:
        """The pull's result; target blocks are not touched after it."""
        try:
            return self._pull()
        except Failed as failure:
            return self._failure(failure)
        except Exception as error:
            # A defect of a backend or of ours must not cost the engine its one result.
            log.exception("transfer %s failed unexpectedly", self._job.transfer)
            return self._failure(Failed(self._stage, "error", f"{type(error).__name__}: {error}"))

    def say_abort(self, why: str) -> None:
        """Free the source's pin early; its deadline does it otherwise.

        For use after a failure, and for a job that never ran: the engine's scheduler side may
        have pinned under the same transfer.
        """
        if not self._answers:
            return
        try:
            self._client.call(
                self._job.address,
                Abort(transfer=self._job.transfer, why=why),
                timeout_s=ABORT_TIMEOUT_S,
            )
        except (PeerRefused, PeerUnreachable) as error:
            log.debug("abort of %s was not heard: %s", self._job.transfer, error)

    def _pull(self) -> PullResult:
        job = self._job
        granted = self._timed("pin", self._pin)
        count = len(granted.blocks)
        outcome = self._timed("read", lambda: self._read(granted))
        if not self._skip_done:
            self._timed("settle", self._settle)
        return self._complete(
            PullResult(
                transfer=job.transfer,
                request=job.request,
                ok=True,
                count=count,
                failed_blocks=job.target_blocks[count:],
                bytes=outcome.bytes,
                verified_blocks=outcome.verified_blocks,
            )
        )

    def _pin(self) -> Granted:
        job = self._job
        try:
            wanted = job.wanted()
        except ValueError as error:
            raise Failed("pin", "error", str(error)) from error
        frame = Pin(
            transfer=job.transfer,
            incarnation=job.incarnation,
            hashes=wanted,
            start=job.start,
            deadline_ms=self._limits.pin_ms,
            ranks=job.ranks,
        )
        granted = self._ask(frame)
        if not isinstance(granted, Granted) or granted.transfer != job.transfer:
            raise Failed("pin", "error", f"{type(granted).__name__} answers a pin")
        if not 0 < len(granted.blocks) <= len(wanted):
            raise Failed("pin", "error", f"{len(granted.blocks)} of {len(wanted)} blocks granted")
        ranks = len(granted.grants)
        if ranks != job.ranks or len(granted.backends) != ranks or not 0 <= job.rank < ranks:
            raise Failed("pin", "refused", f"the source has {ranks} ranks, we have {job.ranks}")
        return granted

    def _read(self, granted: Granted) -> ReadOutcome:
        job = self._job
        offered = granted.backends[job.rank]
        backend = next((b for b in self._backends if b.name in offered), None)
        if backend is None:
            ours = ", ".join(b.name for b in self._backends) or "none"
            theirs = ", ".join(offered) or "none"
            raise Failed("read", "error", f"no common backend: {ours} here, {theirs} there")
        self._backend = backend
        request = ReadRequest(
            transfer=job.transfer,
            peer=offered[backend.name],
            grant=granted.grants[job.rank],
            source_blocks=granted.blocks,
            target_blocks=job.target_blocks[: len(granted.blocks)],
            verify=job.verify,
            deadline_s=self._left_s(),
        )
        try:
            self._posted = posted = backend.post(request)
        except BackendError as error:
            raise Failed("read", "error", str(error)) from error
        outcome = self._wait(posted, granted.deadline_ms / 3000)
        if outcome.error:
            raise Failed("read", outcome.error, outcome.detail)
        self._posted = None
        return outcome

    def _wait(self, posted: Posted, renew_every_s: float) -> ReadOutcome:
        renew_at_s = time.monotonic() + renew_every_s
        while True:
            outcome = posted.wait(min(WAIT_SLICE_S, self._left_s()))
            if outcome is not None:
                return outcome
            self._left_s()
            if time.monotonic() >= renew_at_s:
                self._renew()
                renew_at_s = time.monotonic() + renew_every_s

    def _renew(self) -> None:
        frame = Renew(transfer=self._job.transfer, deadline_ms=self._limits.pin_ms)
        try:
            self._client.call(
                self._job.address, frame, timeout_s=min(RENEW_TIMEOUT_S, self._left_s())
            )
        except PeerRefused as refused:
            raise Failed("read", "refused", f"the pin ended: {refused}") from refused
        except PeerUnreachable as error:
            # The bytes may still come, and done asks again: it alone decides.
            log.debug("renewal of %s was not heard: %s", self._job.transfer, error)

    def _settle(self) -> None:
        answer = self._ask(Done(transfer=self._job.transfer, rank=self._job.rank))
        if not isinstance(answer, Settled) or answer.transfer != self._job.transfer:
            raise Failed("settle", "error", f"{type(answer).__name__} answers done")
        if not answer.intact:
            raise Failed("settle", "void", "a block was reused, or the pin had ended")

    def _ask(self, frame: AnyFrame) -> AnyFrame:
        timeout_s = min(self._limits.call_s, self._left_s())
        try:
            return self._client.call(
                self._job.address, frame, timeout_s=timeout_s, incarnation=self._job.incarnation
            )
        except PeerRefused as refused:
            self._answers = refused.reason not in NOTHING_TO_ABORT
            raise Failed(self._stage, "refused", str(refused)) from refused
        except PeerUnreachable as error:
            self._answers = False
            gone = isinstance(error.__cause__, ConnectionRefusedError)
            detail = f"{NOBODY_LISTENS}: {error}" if gone else str(error)
            raise Failed(self._stage, "unreachable", detail) from error

    def _left_s(self) -> float:
        """Seconds left for this pull; fails it when it was cancelled or has none."""
        if self._cancelled.is_set():
            raise Failed(self._stage, "aborted", "cancelled by the engine")
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise Failed(self._stage, "deadline", f"{self._job.deadline_s} s have passed")
        return left_s

    def _timed(self, stage: str, act: Callable[[], ResultT]) -> ResultT:
        self._stage = stage
        began_s = time.monotonic()
        try:
            return act()
        finally:
            self._took_ms[stage] = (time.monotonic() - began_s) * 1000

    def _failure(self, failure: Failed) -> PullResult:
        self._end_read()
        return self._complete(
            PullResult(
                transfer=self._job.transfer,
                request=self._job.request,
                ok=False,
                failed_blocks=self._job.target_blocks,
                stage=failure.stage,
                reason=failure.reason,
                detail=failure.detail,
            )
        )

    def _end_read(self) -> None:
        """Fence: no result goes out while a target block may still change."""
        if self._posted is None or self._backend is None:
            return
        try:
            self._posted.abort()
            self._fence = self._backend.capabilities.fence
        except Exception:
            log.exception("backend %s cannot end a read; closing it", self._backend.name)
            self._fence = self._close_backend(self._backend)

    def _close_backend(self, backend: Backend) -> str:
        try:
            backend.close()
        except Exception:
            log.critical(
                "backend %s cannot be closed: blocks of transfer %s may still change; "
                "restart this engine",
                backend.name,
                self._job.transfer,
                exc_info=True,
            )
            return ""
        return "backend_closed"

    def _complete(self, result: PullResult) -> PullResult:
        """The result with what was measured on the way."""
        return msgspec.structs.replace(
            result,
            fence=self._fence,
            backend=self._backend.name if self._backend else "",
            pin_ms=self._took_ms.get("pin", 0.0),
            read_ms=self._took_ms.get("read", 0.0),
            settle_ms=self._took_ms.get("settle", 0.0),
            total_ms=(time.monotonic() - self._submitted_s) * 1000,
        )
