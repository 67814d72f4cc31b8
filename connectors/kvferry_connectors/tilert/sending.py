"""One send: a request's layers from one rank's staging memory to one decode node."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.errors import BackendError
from kvferry_connectors.tilert.admission import Admitted, Wanted, admit
from kvferry_connectors.tilert.errors import ADMISSION, DONE, WRITE, SendRefused
from kvferry_connectors.tilert.layout import Stage, Target, pieces
from kvferry_connectors.tilert.outcomes import REFUSED, SENT, RankOutcome
from kvferry_connectors.tilert.staging import Lease
from kvferry_connectors.tilert.targets import Met, Targets
from kvferry_connectors.tilert.wire import Done, await_end, send

POLL_S = 0.0002
"""Between two looks at a write under way: looking is what moves it on."""
LAYER_WAIT_S = 0.5
"""How often a send that waits for layers looks whether it is to stop."""
COPIED_WAIT_S = 600.0
"""How long a step that copies layers may take."""

log = logging.getLogger("kvferry.tilert")
_END = -1


class Send:
    """Goes on, on a thread of its own, from the order to the outcome. The engine's thread hands
    layers over and never waits.

    It owns its staging range until the engine has copied all that it will, each of those copies is
    done, and every write is in place or fenced.
    """

    def __init__(
        self,
        request: str,
        wanted: Wanted,
        *,
        rank: int,
        plays: Sequence[int],
        stage: Stage,
        lease: Lease,
        targets: Targets,
        timeout_s: float,
        told: Callable[[RankOutcome], None],
        gone: Callable[[Send], None],
    ) -> None:
        """``plays`` are the node's sender ranks whose part this process takes; ``told`` is called
        once with the outcome, and ``gone`` when the staging range is given back."""
        self._thread = threading.Thread(
            target=self._run, name=f"kvferry-tilert-{wanted.rid[:32]}", daemon=True
        )
        self.request = request
        self._wanted = wanted
        self._where = f"{wanted.host}:{wanted.port}"
        self._rank = rank
        self._plays = plays
        self._stage = stage
        self._lease = lease
        self._targets = targets
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._told = told
        self._gone = gone
        self._layers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._stop_reason = ""
        self._stopping = threading.Event()
        self._admitted: list[Admitted] = []
        self._copied = False
        """Whether the engine's last layer was taken over."""
        self._began = time.monotonic()
        self._admitted_ms = 0.0
        self._came = ADMISSION
        """How far it came."""
        self.over = False
        """Nothing will be sent any more: copies can be spared."""

    # --- the engine's thread ------------------------------------------------------------------

    def layer(self, number: int, ready: Any) -> None:
        """A layer is in the staging range once ``ready`` (an event, or None) says so."""
        self._layers.put((number, ready))

    def copied(self) -> None:
        """The engine copies nothing more into the staging range."""
        self._layers.put((_END, None))

    def stop(self, reason: str) -> None:
        """End it soon, with one of the reasons for a refusal, unless it has ended."""
        if not self._stopping.is_set():
            self._stop_reason = reason
            self._stopping.set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for its thread; whether that has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- its own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        """Send, tell the outcome, and give the staging range back when nobody uses it."""
        safe = True
        met: Met | None = None
        try:
            self._take_device()
            self._admit_all()
            self._came = WRITE
            met = self._targets.use(self._where, self._hello, self._target)
            count = self._write_layers(met)
            self._came = DONE
            self._tell_done()
            outcome = self._outcome(SENT, bytes=count)
        except SendRefused as refused:
            outcome = self._outcome(REFUSED, reason=refused.reason, detail=refused.detail)
        except Exception as error:
            log.exception("tilert: the send of %s failed", self.request)
            outcome = self._outcome(REFUSED, reason="write_failed", detail=repr(error))
        self.over = True
        if met is not None:
            safe = self._leave(met, fenced=outcome.state == REFUSED)
        for admitted in self._admitted:
            admitted.connection.close()
        self._told(outcome)
        if self._await_copies() and safe:
            self._lease.release()
        self._gone(self)

    def _take_device(self) -> None:
        """Make the staging memory's device this thread's own, as UCX wants it."""
        device = self._lease.memory.device
        if device.type == "cuda":
            import torch

            torch.cuda.set_device(device)

    @property
    def _hello(self) -> Any:
        return self._admitted[0].hello

    @property
    def _target(self) -> Target:
        return Target.of(self._hello, self._stage.shape)

    def _admit_all(self) -> None:
        for rank in self._plays:
            self._admitted.append(admit(self._wanted, rank, self._stopping))
            self._check_stop()
        # Parts of two admissions never make one request.
        generations = {one.generation for one in self._admitted}
        if len(generations) != 1:
            raise SendRefused("not_admitted", f"ranks were admitted apart, as {generations}")
        self._admitted_ms = 1000 * (time.monotonic() - self._began)

    def _write_layers(self, met: Met) -> int:
        """Write each layer as it comes; returns the bytes."""
        target, total, left = self._target, 0, set(self._stage.layers)
        while left or not self._copied:
            layers = self._next_layers()
            left -= set(layers)
            if self._copied and left:
                raise SendRefused("extraction_failed", f"layers {sorted(left)} were not copied")
            if layers:
                listed = pieces(self._stage, self._lease.address, target, layers)
                self._write(met, listed)
                total += sum(piece.length for piece in listed)
        return total

    def _next_layers(self) -> list[int]:
        """Layers that are in the staging range now; at least one, unless that was all."""
        found: list[int] = []
        while not self._copied:
            try:
                number, ready = self._layers.get(block=not found, timeout=LAYER_WAIT_S)
            except queue.Empty:
                if found:
                    break
                self._check_stop()
                continue
            if number == _END:
                self._copied = True
                break
            if ready is not None:
                ready.synchronize()
            found.append(number)
        return found

    def _write(self, met: Met, listed: Sequence[Any]) -> None:
        try:
            writing = met.remote.write(listed)
            while not writing.done():
                self._check_stop()
                time.sleep(POLL_S)
        except BackendError as error:
            raise SendRefused("write_failed", str(error)) from error

    def _tell_done(self) -> None:
        self._check_stop()
        for one in self._admitted:
            send(
                one.connection,
                Done(rid=self._wanted.rid, rank=one.rank, generation=one.generation),
            )
        for one in self._admitted:
            await_end(one.connection)

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise SendRefused(self._stop_reason)
        if time.monotonic() > self._deadline:
            raise SendRefused("timeout", f"the send took longer than {self._timeout_s:g} s")

    def _leave(self, met: Met, *, fenced: bool) -> bool:
        """Whether nothing reads the staging range any more."""
        safe = True
        if fenced:
            try:
                self._targets.fence(self._where, met)
            except BackendError as error:
                log.critical("tilert: staging memory of %s stays reserved: %s", self.request, error)
                safe = False
        self._targets.give(self._where, met)
        return safe

    def _await_copies(self) -> bool:
        """Whether the engine's last copy into the staging range is done.

        It says so at the end of the step that began the send, and at its close.
        """
        while not self._copied:
            try:
                number, ready = self._layers.get(timeout=COPIED_WAIT_S)
            except queue.Empty:
                log.critical("tilert: staging memory of %s stays reserved: no end", self.request)
                return False
            if number == _END:
                self._copied = True
            elif ready is not None:
                ready.synchronize()
        return True

    def _outcome(
        self, state: str, *, reason: str = "", detail: str = "", bytes: int = 0
    ) -> RankOutcome:
        return RankOutcome(
            request=self.request,
            rank=self._rank,
            state=state,
            reason=reason,
            detail=detail,
            stage=self._came,
            bytes=bytes,
            generation=self._admitted[0].generation if self._admitted else -1,
            admitted_ms=self._admitted_ms,
            total_ms=1000 * (time.monotonic() - self._began),
        )
