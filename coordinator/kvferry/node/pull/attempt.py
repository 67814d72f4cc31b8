"""One pull from pin to done, on the thread that calls it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from kvferry.errors import PeerRefused, PeerUnreachable
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.wire import Abort, AnyFrame, Done, Granted, Pin, Renew, Settled
from kvferry.node.pull.failure import Failed
from kvferry.node.pull.jobs import PullJob, PullResult
from kvferry.node.pull.links import Links
from kvferry.node.pull.reading import Reader
from kvferry.node.pull.reads import Control

log = logging.getLogger("kvferry.puller")

ResultT = TypeVar("ResultT")

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


class Attempt:
    """Runs one job. :meth:`run` never raises and returns after the fence."""

    def __init__(
        self,
        job: PullJob,
        client: PeerClient,
        links: Links,
        limits: Limits,
        *,
        cancelled: threading.Event,
        submitted_s: float,
        skip_done: bool = False,
    ) -> None:
        self._job = job
        self._client = client
        self._links = links
        self._limits = limits
        self._cancelled = cancelled
        self._submitted_s = submitted_s
        self._deadline_s = submitted_s + job.deadline_s
        self._skip_done = skip_done
        self._stage = "pin"
        self._took_ms: dict[str, float] = {}
        self._reader = Reader(job, Control(self._grant, self._renew, self._left_s), links)
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
            detail = f"{type(error).__name__}: {error}"
            if self._stage == "read":
                self._reader.blame(detail)
            return self._failure(Failed(self._stage, "error", detail))

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
        count = self._bring()
        if not self._skip_done:
            self._timed("settle", self._settle)
        return self._complete(
            PullResult(
                transfer=job.transfer,
                request=job.request,
                ok=True,
                count=count,
                failed_blocks=job.target_blocks[count:],
                bytes=self._reader.bytes,
                verified_blocks=self._reader.verified_blocks,
                host_blocks=self._reader.host_blocks,
            )
        )

    def _bring(self) -> int:
        """Pin and read; how many target blocks are in place, from the first on."""
        granted = self._timed("pin", self._pin)
        self._timed("read", lambda: self._reader.read(granted))
        return len(granted.blocks)

    # --- what the reads need ----------------------------------------------------------------

    def _grant(self, first: int, count: int) -> Granted:
        """A grant for exactly these blocks of the job; the pin that stands covers them.

        Raises:
            Failed: the source does not grant all of them.
        """
        granted = self._ask_pin(self._wanted()[first : first + count], self._job.start + first)
        if len(granted.blocks) != count:
            raise Failed(
                "read", "refused", f"{len(granted.blocks)} of {count} blocks granted again"
            )
        return granted

    def _renew(self) -> bool:
        """Keep the pin; False when the source does not answer.

        Raises:
            Failed: the pin has ended.
        """
        frame = Renew(transfer=self._job.transfer, deadline_ms=self._limits.pin_ms)
        timeout_s = min(RENEW_TIMEOUT_S, self._left_s())
        try:
            self._client.call(self._job.address, frame, timeout_s=timeout_s)
        except PeerRefused as refused:
            raise Failed("read", "refused", f"the pin ended: {refused}") from refused
        except PeerUnreachable as error:
            log.debug("renewal of %s was not heard: %s", self._job.transfer, error)
            return False
        return True

    def _left_s(self) -> float:
        """Seconds left for this pull; fails it when it was cancelled or has none."""
        if self._cancelled.is_set():
            raise Failed(self._stage, "aborted", "cancelled by the engine")
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise Failed(self._stage, "deadline", f"{self._job.deadline_s} s have passed")
        return left_s

    # --- inner ------------------------------------------------------------------------------

    def _pin(self) -> Granted:
        return self._ask_pin(self._wanted(), self._job.start)

    def _wanted(self) -> tuple[bytes, ...]:
        try:
            return self._job.wanted()
        except ValueError as error:
            raise Failed("pin", "error", str(error)) from error

    def _ask_pin(self, wanted: tuple[bytes, ...], start: int) -> Granted:
        job = self._job
        frame = Pin(
            transfer=job.transfer,
            incarnation=job.incarnation,
            hashes=wanted,
            start=start,
            deadline_ms=self._limits.pin_ms,
            ranks=job.ranks,
            host=self._links.reads_host,
        )
        granted = self._ask(frame)
        if not isinstance(granted, Granted) or granted.transfer != job.transfer:
            raise Failed(self._stage, "error", f"{type(granted).__name__} answers a pin")
        if not 0 < len(granted.blocks) <= len(wanted):
            detail = f"{len(granted.blocks)} of {len(wanted)} blocks granted"
            raise Failed(self._stage, "error", detail)
        ranks = len(granted.grants)
        if ranks != job.ranks or len(granted.backends) != ranks or not 0 <= job.rank < ranks:
            detail = f"the source has {ranks} ranks, we have {job.ranks}"
            raise Failed(self._stage, "refused", detail)
        return granted

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
            if refused.reason == "incarnation":
                self._links.gone(self._job.incarnation)
            raise Failed(self._stage, "refused", str(refused)) from refused
        except PeerUnreachable as error:
            self._answers = False
            gone = isinstance(error.__cause__, ConnectionRefusedError)
            if gone:
                self._links.gone(self._job.incarnation)
            detail = f"{NOBODY_LISTENS}: {error}" if gone else str(error)
            raise Failed(self._stage, "unreachable", detail) from error

    def _timed(self, stage: str, act: Callable[[], ResultT]) -> ResultT:
        self._stage = stage
        began_s = time.monotonic()
        try:
            return act()
        finally:
            self._took_ms[stage] = (time.monotonic() - began_s) * 1000

    def _failure(self, failure: Failed) -> PullResult:
        self._reader.end()  # No result goes out while a target block may still change.
        self._fence = self._fence or self._reader.fence
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

    def _complete(self, result: PullResult) -> PullResult:
        """The result with what was measured on the way."""
        reader = self._reader
        return msgspec.structs.replace(
            result,
            fence=self._fence or reader.fence,
            backend=reader.most,
            chosen=reader.news,
            pin_ms=self._took_ms.get("pin", 0.0),
            read_ms=self._took_ms.get("read", 0.0),
            settle_ms=self._took_ms.get("settle", 0.0),
            total_ms=(time.monotonic() - self._submitted_s) * 1000,
        )
