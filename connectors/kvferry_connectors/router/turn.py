"""One turn: P builds the prompt's KV, D answers from it, the router keeps the record."""

from __future__ import annotations

import logging
import time

from kvferry.core.events import TurnEnded
from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.context import OK, Router
from kvferry_connectors.router.decode import Decoded, decode
from kvferry_connectors.router.errors import Answered
from kvferry_connectors.router.overlap import followable, overlap
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.prefill import Prefilled, prefill
from kvferry_connectors.router.relay import Seen, clean
from kvferry_connectors.router.reply import Reply
from kvferry_connectors.router.report import REUSE_LINE_HEADER, reuse_line
from kvferry_connectors.router.sessions import Known, new_session, turn_of
from kvferry_connectors.router.tilert.turn import PoolTurn
from kvferry_connectors.router.wishes import TILERT

logger = logging.getLogger("kvferry.router")

ID_HEADER = "x-kvferry-request"
_DOWN = (502, 503)


class Turn:
    """Answers one request. Cancelling :meth:`run` ends the engines' requests too."""

    def __init__(self, router: Router, asked: Asked, reply: Reply) -> None:
        self._router = router
        self._asked = asked
        self._reply = reply
        self._known = router.book.find(asked.chain, asked.named)
        known_session = self._known.session if self._known else new_session()
        self._session = asked.session or known_session
        self._began = time.monotonic()
        self._prefilled: Prefilled | None = None
        self._decoded = Decoded()
        self._pool = ""

    async def run(self) -> None:
        """Runs the turn to its end and records it, whatever the end was."""
        router, asked = self._router, self._asked
        self._reply.headers[ID_HEADER] = asked.id
        try:
            if asked.wishes.pool == TILERT and await self._by_tilert():
                return
            engine = followable(router, asked, self._known)
            if engine is None or not await self._at_once(engine):
                await self._in_turn(engine.name if engine else "")
        except Answered as early:
            self._decoded.outcome = "unavailable" if early.answer.status in _DOWN else "refused"
            await self._reply.whole(clean(early.answer, Seen()))
        finally:
            self._record()

    async def _by_tilert(self) -> bool:
        """By a TileRT node; false if the request goes on to native decode."""
        turn = PoolTurn(
            self._router, self._asked, self._session, self._known, self._reply, self._decoded
        )
        try:
            return await turn.run()
        finally:
            self._prefilled, self._pool = turn.prefilled, turn.note

    async def _at_once(self, engine: Engine) -> bool:
        """P and D together; false if P failed and the turn has to begin again."""
        self._prefilled = await overlap(
            self._router,
            self._asked,
            self._session,
            self._known,
            engine,
            self._reply,
            self._decoded,
        )
        return self._prefilled is not None

    async def _in_turn(self, failed: str) -> None:
        """First P, but not the one that ``failed``; then D."""
        router, asked, session, known = self._router, self._asked, self._session, self._known
        self._prefilled = await prefill(router, asked, session, known, failed)
        self._reply.headers[REUSE_LINE_HEADER] = self._reuse(self._prefilled)
        await decode(router, asked, session, known, self._prefilled, self._reply, self._decoded)

    def _reuse(self, prefilled: Prefilled) -> str:
        line = reuse_line(prefilled.report, prefilled.miss)
        return f"{line} {self._pool}" if self._pool else line

    def _record(self) -> None:
        ended = time.monotonic()
        event = self._event(ended)
        if self._decoded.engine and self._reply.status == OK:
            self._remember()
        prefilled = self._prefilled or Prefilled()
        self._router.counters.turn(event.outcome, prefilled.report, prefilled.miss)
        if self._router.ledger is not None:
            self._router.ledger.turn_ended(event)
        logger.info(
            "turn %s session=%s %s->%s %s ttft=%.0fms total=%.0fms outcome=%s",
            event.request,
            event.session,
            event.prefill_node or "-",
            event.decode_node or "-",
            event.reuse or "-",
            event.ttft_ms,
            event.total_ms,
            event.outcome,
        )

    def _remember(self) -> None:
        """Also after an abort: D keeps what it computed."""
        if self._asked.wishes.end:
            self._router.book.end(self._asked.named)
            return
        prefilled = self._prefilled or Prefilled()
        self._router.book.remember(
            self._asked.chain,
            self._asked.named,
            Known(
                self._session,
                prefilled.engine,
                self._decoded.engine,
                self._decoded.seen.kv.hint,
                turn_of(self._known),
            ),
        )

    def _event(self, ended: float) -> TurnEnded:
        prefilled, decoded = self._prefilled or Prefilled(), self._decoded
        of_p, of_d = prefilled.report, decoded.seen.kv.report
        first = self._reply.first_byte
        prompt_tokens = decoded.seen.prompt_tokens or (of_p.prompt_tokens if of_p else 0)
        return TurnEnded(
            request=self._asked.id,
            session=self._session,
            prefill_node=prefilled.engine,
            decode_node=decoded.engine,
            prefill_request=of_p.request if of_p else "",
            decode_request=of_d.request if of_d and of_d.request else decoded.request,
            prompt_tokens=prompt_tokens,
            output_tokens=decoded.seen.output_tokens,
            ttft_ms=(first - self._began) * 1000 if first is not None else 0.0,
            total_ms=(ended - self._began) * 1000,
            outcome=decoded.outcome,
            reuse=self._reuse(self._prefilled) if self._prefilled else "",
        )
