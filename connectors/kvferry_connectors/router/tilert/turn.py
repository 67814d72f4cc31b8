"""One turn on the pool, and when it goes to native decode instead."""

from __future__ import annotations

import logging
import time

from kvferry.errors import SlotLost
from kvferry.node.slots import Slot
from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.context import Router, note_failure
from kvferry_connectors.router.decode import Decoded
from kvferry_connectors.router.errors import (
    Answered,
    EngineFailed,
    RouterError,
    bad_request,
    error_answer,
)
from kvferry_connectors.router.prefill import Prefilled
from kvferry_connectors.router.reply import Reply
from kvferry_connectors.router.sessions import Known
from kvferry_connectors.router.tilert.answer import output_bound
from kvferry_connectors.router.tilert.attempt import Attempt, OnlyNative
from kvferry_connectors.router.tilert.first import PrefillFailed
from kvferry_connectors.router.tilert.honours import cannot
from kvferry_connectors.router.tilert.node import Node
from kvferry_connectors.router.tilert.pool import TilertPool
from kvferry_connectors.router.tilert.sampling import resolve
from kvferry_connectors.router.tilert.waiting import DOWN, NoSlot

logger = logging.getLogger("kvferry.router")


class Native(RouterError):
    """The pool cannot answer this turn.

    Attributes:
        why: in one word, for the header and the counters.
        early: what a client is told that does not want native decode.
    """

    def __init__(self, why: str, early: Answered) -> None:
        super().__init__(why)
        self.why = why
        self.early = early


class PoolTurn:
    """Answers one request by a TileRT node.

    Attributes:
        note: what the ``x-kvferry`` header says of the pool.
        prefilled: what P said, as far as the turn got.
    """

    def __init__(
        self,
        router: Router,
        asked: Asked,
        session: str,
        known: Known | None,
        reply: Reply,
        decoded: Decoded,
    ) -> None:
        self._router = router
        self._asked = asked
        self._session = session
        self._known = known
        self._reply = reply
        self._decoded = decoded
        self._began = time.monotonic()
        self.note = ""
        self.prefilled: Prefilled | None = None

    async def run(self) -> bool:
        """Answers the client, or says in a begun stream that it broke off.

        Returns:
            false if the request goes to native decode, as its client allows.

        Raises:
            Answered: the client is told why it gets no answer.
        """
        counters, asked = self._router.counters, self._asked
        try:
            await self._run()
        except Native as error:
            pool = "native" if asked.wishes.fallback else "none"
            counters.tilert[f"{pool}_{error.why}"] += 1
            self.note = f"pool={pool} why={error.why}"
            self._decoded.engine = self._decoded.request = ""
            if not asked.wishes.fallback:
                raise error.early from error
            logger.info("turn %s goes to native decode: %s", asked.id, error.why)
            return False
        except EngineFailed as error:
            counters.tilert["broken"] += 1
            self._decoded.outcome = "error"
            await self._reply.break_stream(f"the answer broke off: {error}")
            return True
        counters.tilert["answered"] += 1
        return True

    async def _run(self) -> None:
        pool, asked = self._router.tilert, self._asked
        if pool is None:
            raise Native("no_pool", bad_request("this router has no TileRT nodes (--tilert)"))
        sampling = resolve(asked.body, pool.model.defaults)
        output_max = output_bound(asked.kind, asked.body)
        why = cannot(asked.kind, asked.body, asked.single, sampling)
        if why:
            raise Native("cannot", bad_request(f"TileRT cannot honour this request: {why}", 501))
        failures: dict[str, str] = {}
        while True:
            node, slot = await self._idle_node(pool, failures)
            attempt = Attempt(pool, node, slot, f"{asked.id}-t{len(failures) + 1}")
            self.note = attempt.note
            try:
                await attempt.run(
                    self._router,
                    asked,
                    self._session,
                    self._known,
                    sampling,
                    output_max,
                    self._reply,
                    self._decoded,
                )
                return
            except (EngineFailed, SlotLost) as error:
                self._failed(node, error, failures)
            finally:
                self.prefilled = attempt.prefilled
                attempt.leave()

    async def _idle_node(self, pool: TilertPool, failures: dict[str, str]) -> tuple[Node, Slot]:
        """A node that is leased to this turn, and idle."""
        while True:
            try:
                slot = await pool.queue.take(
                    pool.view(failures),
                    self._asked.id,
                    self._session,
                    since=None if self._asked.wishes.fallback else self._began,
                )
            except NoSlot as error:
                if failures and error.why == DOWN:
                    raise Native("failed", _upstream(pool.view(failures).states(), 502)) from error
                raise Native(error.why, Answered(error.answer())) from error
            node = pool.nodes[slot.node.name]
            idle = False
            try:
                idle = await pool.idle(node, failures)
            finally:
                if not idle:
                    await pool.untouched(slot, "the node was not idle")
            if idle:
                return node, slot

    def _failed(self, node: Node, error: EngineFailed | SlotLost, failures: dict[str, str]) -> None:
        """Returns if another node shall be tried."""
        if isinstance(error, OnlyNative):
            raise Native(error.word, bad_request(str(error), error.status)) from error
        if isinstance(error, PrefillFailed):
            # Noted where it happened. Another node would need the same P.
            raise Native("prefill_down", _upstream(error, 503)) from error
        if isinstance(error, EngineFailed):
            note_failure(self._router, self._asked, error)
            if self._reply.started:
                raise error
        else:
            logger.warning("turn %s: %s: %s", self._asked.id, node.name, error)
        failures[node.name] = str(error)
        if len(failures) >= self._router.settings.attempts_max:
            raise Native("failed", _upstream(error, 502)) from error


def _upstream(error: object, status: int) -> Answered:
    headers = {"retry-after": "2"}
    return Answered(error_answer(status, "upstream_error", f"TileRT: {error}", headers))
