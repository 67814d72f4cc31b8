"""D's share of a turn: answer the client, from the KV that the hint names."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.bodies import decode_body, kv_part
from kvferry_connectors.router.context import (
    OK,
    SERVER_ERRORS,
    Router,
    ask_engine,
    note_failure,
    request_name,
)
from kvferry_connectors.router.errors import Answer, EngineFailed, RouterError, pool_down
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.prefill import Prefilled
from kvferry_connectors.router.relay import Seen, clean, relay_stream, relay_whole
from kvferry_connectors.router.reply import Reply
from kvferry_connectors.router.sessions import Known, turn_of
from kvferry_connectors.router.upstream import answer_of


@dataclass
class Decoded:
    """D's share as far as it got; readable at any time, also after a cancellation.

    Attributes:
        engine: the D that works, or worked last; empty if none could.
        request: the ``X-Request-Id`` that it was given.
        outcome: ``aborted`` until the turn ends in another way: ``ok``, ``error``,
            ``refused`` (4xx), ``unavailable``.
    """

    engine: str = ""
    request: str = ""
    outcome: str = "aborted"
    seen: Seen = field(default_factory=Seen)


async def decode(
    router: Router,
    asked: Asked,
    session: str,
    known: Known | None,
    prefilled: Prefilled,
    reply: Reply,
    decoded: Decoded,
) -> None:
    """Answers the client from one D; from another one if that fails before the first byte."""
    content = decode_body(asked.body, _part(asked, session, known, prefilled), prefilled.token_ids)
    failures: dict[str, str] = {}
    answer: Answer | None = None
    while len(failures) < router.settings.attempts_max:
        engine = router.decode.pick(
            known.decode if known else "", router.settings.affinity_slack, failures
        )
        if engine is None:
            break
        decoded.engine = engine.name
        decoded.request = request_name(asked.id, "d", len(failures) + 1)
        try:
            await _decode_on(router, asked, engine, content, reply, decoded)
            decoded.outcome = _outcome(reply, decoded)
            return
        except RouterError as error:
            note_failure(router, asked, error)
            if reply.ended:
                # It broke while its finished answer was put away: no matter to the client.
                decoded.outcome = _outcome(reply, decoded)
                return
            if reply.started:
                decoded.outcome = "error"
                await reply.break_stream(f"the answer broke off: {error}")
                return
            failures[engine.name] = str(error)
            answer = error.answer if isinstance(error, EngineFailed) else None
    decoded.outcome = "unavailable"
    decoded.engine = ""
    await reply.whole(
        clean(answer, Seen()) if answer else pool_down("decode", router.decode.states(failures))
    )


async def _decode_on(
    router: Router,
    asked: Asked,
    engine: Engine,
    content: bytes,
    reply: Reply,
    decoded: Decoded,
) -> None:
    async with ask_engine(router, asked, engine, content, decoded.request) as response:
        if response.status_code >= SERVER_ERRORS:
            engine.suspect()
            answer = answer_of(response, await response.aread())
            raise EngineFailed(engine.name, f"answered {answer.status}", answer)
        kind = response.headers.get("content-type", "")
        if asked.stream and kind.startswith("text/event-stream"):
            bound = router.settings.event_bytes_max
            await relay_stream(engine.name, response, reply, decoded.seen, bound)
        else:
            await relay_whole(response, reply, decoded.seen)


def _outcome(reply: Reply, decoded: Decoded) -> str:
    if not decoded.seen.error:
        return "ok"
    return "error" if reply.status == OK else "refused"


def _part(
    asked: Asked, session: str, known: Known | None, prefilled: Prefilled
) -> dict[str, object]:
    """P's hint; without one the session's, from which another D can pull after a failover."""
    hint = prefilled.hint
    if hint is None and asked.single and asked.reuse and known is not None:
        hint = known.hint
    part = kv_part(asked.id, session, turn_of(known), hint) | asked.wishes.part()
    if prefilled.follow:
        part["follow"] = prefilled.follow
    if hint is None and not asked.reuse:
        part["reuse"] = "off"
    return part
