"""What the CLI may ask a coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kvferry.core.digest import digest
from kvferry.daemon.draining import DRAIN_VERBS, Draining
from kvferry.daemon.messages import Answer, Failure, Query, decode_query, encode_answer
from kvferry.daemon.policy import VERBS, Policies
from kvferry.daemon.projector import Projector
from kvferry.errors import CodecError, LedgerError, LedgerUnavailable
from kvferry.ports.log import Reply
from kvferry.replay.status import summarize

log = logging.getLogger("kvferry.daemon")

RUNNING_MAX = 32
WAIT_MAX_S = 30.0
ANSWER_BYTES_MAX = 900 * 1024
"""A NATS server takes messages of 1 MiB by default."""

Live = Callable[[], Answer]


class Queries:
    """Answers on ``query_subject(replica)``; see :class:`kvferry.daemon.messages.Query`.

    Each question runs as a task of its own, so that one which waits holds up no other.
    """

    def __init__(
        self, projector: Projector, policies: Policies, draining: Draining, live: Live
    ) -> None:
        self.answered = 0
        self.failed = 0
        self._projector = projector
        self._policies = policies
        self._draining = draining
        self._live = live
        self._running: set[asyncio.Task[None]] = set()

    async def handle(self, subject: str, data: bytes, reply: Reply | None) -> None:
        """One question from the bus."""
        if reply is None:
            return
        if len(self._running) >= RUNNING_MAX:
            busy = Failure(error="too many questions at once; ask again", reason="busy")
            await reply(encode_answer(busy))
            return
        task = asyncio.create_task(self._serve(data, reply), name="kvferry-query")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """End the questions that still wait."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def answer(self, query: Query) -> Answer | Failure:
        """The answer to one question."""
        match query.verb:
            case "status":
                return {**summarize(self._projector.state), "coordinator": self._live()}
            case "spaces":
                return {"spaces": sorted(self._projector.state.spaces)}
            case "digest":
                return await self._digest(query)
            case verb if verb in VERBS:
                return await self._policies.set(query)
            case verb if verb in DRAIN_VERBS:
                return await self._draining.set(query)
        return Failure(
            error=f"unknown question {query.verb!r}; known: status, spaces, digest, "
            + ", ".join((*VERBS, *DRAIN_VERBS)),
            reason="bad_query",
        )

    async def _serve(self, data: bytes, reply: Reply) -> None:
        answer: Answer | Failure
        try:
            answer = await self.answer(decode_query(data))
        except CodecError as error:
            answer = Failure(error=str(error), reason="bad_query")
        except Exception as error:
            log.exception("a question failed; the coordinator goes on")
            answer = Failure(error=f"{type(error).__name__}: {error}", reason="internal")
        if isinstance(answer, Failure):
            self.failed += 1
        self.answered += 1
        payload = encode_answer(answer)
        if len(payload) > ANSWER_BYTES_MAX:
            payload = encode_answer(
                Failure(
                    error=f"the answer has {len(payload)} bytes, more than one message holds; "
                    "fold the ledger instead (`kvferry replay`)",
                    reason="too_large",
                )
            )
        try:
            await reply(payload)
        except LedgerError as error:
            log.info("an answer could not be sent: %s", error)

    async def _digest(self, query: Query) -> Answer | Failure:
        """The digest at the present position, which is at least the one asked for."""
        try:
            await self._projector.reached(query.position, min(query.timeout_s, WAIT_MAX_S))
        except LedgerUnavailable as error:
            return Failure(error=str(error), reason="behind")
        state = self._projector.state
        return {"position": state.position, "digest": digest(state)}
