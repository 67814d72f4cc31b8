"""The thread that keeps generated KV, and what the engine's thread asks of it.

The engine's thread waits for it at one place only: when a generation is over, and for a bounded
time, for rows have to be out of the engine and the receive buffer before TileRT's slot is released.
Everything else happens beside it, and whatever fails costs the request nothing but being kept.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from kvferry_connectors.tilert.node.keeping import finish, prepare
from kvferry_connectors.tilert.node.membership import Membership
from kvferry_connectors.tilert.node.received import Received
from kvferry_connectors.tilert.node.rows import RowSource
from kvferry_connectors.tilert.node.telling import tell
from kvferry_connectors.tilert.node.work import Generated, Outcome, Unwanted, Work
from kvferry_connectors.tilert.origin import OriginRefused, read

OPEN_MAX = 4
"""Requests that may be on their way. TileRT has one at a time, so the others are late ones."""
JOIN_S = 10.0

log = logging.getLogger("kvferry.tilert.node")


class Keeper:
    """Keeps what one engine generates."""

    def __init__(self, membership: Membership, key: bytes, *, within_ms: int) -> None:
        self._membership = membership
        self._key = key
        self._within_s = within_ms / 1000
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """As many as :data:`OPEN_MAX` allows, changes of the policy, and ends of pins while more is
        kept than that allows."""
        self._open: set[Work] = set()
        self._closing = False
        membership.on_withdraw = lambda reason: self._tasks.put(lambda: self._withdraw(reason))
        membership.on_change = lambda: self._tasks.put(membership.fit)
        self._thread = threading.Thread(target=self._run, name="kvferry-keeper", daemon=True)
        self._thread.start()

    # --- the engine's thread ----------------------------------------------------------------

    def begin(self, request: Any, server: Any, source: RowSource | None) -> Work:
        """A prompt is complete in ``server``'s buffer, as the converted ``request`` says. Returns
        at once; the prompt is copied while the engine generates."""
        work = Work(str(request.rid), int(request.seq_len))
        try:
            self._accept(work, request, server, source)
        except OriginRefused as refused:
            work.settle(Outcome(reason=refused.reason, detail=refused.detail))
        except Exception as error:
            # The request goes on whatever is wrong with keeping it.
            log.exception("keeping %s cannot begin", work.rid)
            work.settle(Outcome(reason="error", detail=repr(error)))
        return work

    def generated(self, work: Work, generated: Generated) -> None:
        """The generation is over: returns when its rows are out of the engine, or the bound is."""
        with work.lock:
            work.generated = generated
        if work in self._open:
            self._tasks.put(lambda: self._do(work, finish))
            if not work.taken.wait(self._within_s):
                within = f"not copied in {1000 * self._within_s:.0f} ms (--return-within-ms)"
                work.settle(Outcome(reason="too_slow", detail=within))
        self._tell(work)

    def failed(self, work: Work) -> None:
        """The engine failed, before its generation was over or in it."""
        work.settle(Outcome(reason="decode_failed"))
        self.generated(work, Generated((), "error"))

    def close(self) -> None:
        """Keep nothing more, and join the thread."""
        self._closing = True
        for work in list(self._open):
            work.settle(Outcome(reason="closed"))
        self._tasks.put(None)
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            log.error("%s did not end within %g s", self._thread.name, JOIN_S)

    # --- inner ------------------------------------------------------------------------------

    def _accept(self, work: Work, request: Any, server: Any, source: RowSource | None) -> None:
        origin = read(request.sampling, self._key, time.time_ns() // 1_000_000)
        if (origin.rid, origin.tokens) != (work.rid, work.prompt_tokens):
            raise OriginRefused(
                "other_request",
                f"it is of {origin.rid!r} with {origin.tokens} tokens, not of {work.rid!r} with "
                f"{work.prompt_tokens}",
            )
        work.origin = origin
        if source is None:
            raise OriginRefused("no_export", "it has no export_rows and is none of TileRT's own")
        if self._closing:
            raise OriginRefused("closed", "")
        if len(self._open) >= OPEN_MAX:
            raise OriginRefused("busy", f"{OPEN_MAX} are on their way")
        work.source, work.received = source, Received(server, origin)
        self._open.add(work)
        self._tasks.put(lambda: self._do(work, prepare))

    def _tell(self, work: Work) -> None:
        """Its outcome, once, as soon as that and the generation's are known."""
        with work.lock:
            if work.outcome is None or work.generated is None or work.told:
                return
            work.told = True
        tell(work, self._membership)

    # --- the keeper's thread ----------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("the keeper goes on after a failure")

    def _do(self, work: Work, step: Callable[[Work, Membership], None]) -> None:
        if work not in self._open:
            return
        try:
            work.go()
            step(work, self._membership)
        except Unwanted:
            log.debug("what was begun for %s is dropped", work.rid)
        except OriginRefused as refused:
            work.settle(Outcome(reason=refused.reason, detail=refused.detail))
        except Exception as error:
            log.exception("keeping %s failed", work.rid)
            work.settle(Outcome(reason="error", detail=repr(error)))
        if work.outcome is None:
            return
        if work.draft is not None:
            self._membership.drop(work.draft)
        work.forget()
        self._open.discard(work)
        self._tell(work)

    def _withdraw(self, reason: str) -> None:
        """An operator wants nothing kept."""
        for work in list(self._open):
            work.settle(Outcome(reason=reason))
            self._do(work, prepare)
        self._membership.clear(reason)
