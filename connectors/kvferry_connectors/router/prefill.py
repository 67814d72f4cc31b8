"""P's share of a turn: build the prompt's KV, and say how D can fetch it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.bodies import kv_part, may_hand_over, prefill_body, read_token_ids
from kvferry_connectors.router.context import (
    CLIENT_ERRORS,
    SERVER_ERRORS,
    Router,
    ask_engine,
    note_failure,
    request_name,
)
from kvferry_connectors.router.errors import Answered, EngineFailed
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.report import Report, read_reply
from kvferry_connectors.router.sessions import Known, turn_of
from kvferry_connectors.router.sse import PARAMS
from kvferry_connectors.router.upstream import answer_of

logger = logging.getLogger("kvferry.router")


@dataclass(frozen=True)
class Prefilled:
    """What P said, or why there is no P in this turn.

    Attributes:
        hint: how D can fetch the prompt's KV.
        token_ids: the prompt as P tokenised it, if D should take it over.
        miss: why there is no report, in one word.
        follow: the name under which P publishes the prompt's blocks while it computes them.
        answer: all that P answered, for who needs more of it.
    """

    engine: str = ""
    hint: dict[str, object] | None = None
    report: Report | None = None
    token_ids: list[int] | None = None
    miss: str = ""
    follow: str = ""
    answer: Mapping[str, object] = field(default_factory=dict, repr=False)


async def prefill(
    router: Router, asked: Asked, session: str, known: Known | None, failed: str = ""
) -> Prefilled:
    """Asks one P after the other; without any the turn goes on, for D can compute by itself.

    Args:
        failed: a P that failed in this turn already.

    Raises:
        Answered: P refused the request itself, with 4xx.
    """
    if not asked.single:
        return Prefilled(miss="unshareable")
    hand_over = router.settings.hand_over_tokens and may_hand_over(asked.kind, asked.body)
    content = prefill_body(asked.kind, asked.body, prefill_part(asked, session, known), hand_over)
    tried: set[str] = {failed} if failed else set()
    while len(tried) < router.settings.attempts_max:
        engine = router.prefill.pick(known.prefill if known else "", 0, tried)
        if engine is None:
            break
        tried.add(engine.name)
        name = request_name(asked.id, "p", len(tried))
        try:
            return await prefill_on(router, asked, engine, content, name)
        except EngineFailed as error:
            note_failure(router, asked, error)
    return Prefilled(miss="prefill_down")


async def prefill_at(
    router: Router, asked: Asked, session: str, known: Known | None, engine: Engine, publish: str
) -> Prefilled:
    """Asks one P to offer the prompt's blocks under the name ``publish`` as it computes them.

    Raises:
        Answered: P refused the request itself, with 4xx.
        EngineFailed: P could not serve it.
    """
    part = prefill_part(asked, session, known) | {"publish": publish}
    content = prefill_body(asked.kind, asked.body, part, want_tokens=False)
    return await prefill_on(router, asked, engine, content, request_name(asked.id, "p", 1))


def prefill_part(asked: Asked, session: str, known: Known | None) -> dict[str, object]:
    """The ``kvferry`` part of P's request."""
    hint = known.hint if known and asked.reuse else None
    part = kv_part(asked.id, session, turn_of(known), hint) | asked.wishes.part()
    if not asked.reuse:
        part["reuse"] = "off"
    return part


async def prefill_on(
    router: Router, asked: Asked, engine: Engine, content: bytes, name: str
) -> Prefilled:
    """Sends ``content`` to one P.

    Raises:
        Answered: P refused the request itself, with 4xx.
        EngineFailed: P could not serve it.
    """
    async with ask_engine(router, asked, engine, content, name) as response:
        answer = answer_of(response, await response.aread())
    if answer.status >= SERVER_ERRORS:
        engine.suspect()
        raise EngineFailed(engine.name, f"answered {answer.status}", answer)
    if answer.status >= CLIENT_ERRORS:
        raise Answered(answer)
    try:
        value = json.loads(answer.content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise EngineFailed(engine.name, "answered something that is no JSON object")
    kv = read_reply(value.get(PARAMS))
    engine.hint = kv.hint or engine.hint
    if kv.report is None:
        logger.debug(
            "prefill engine %s reported nothing: check that its --kv-transfer-config names the "
            "kvferry connector",
            engine.name,
        )
    return Prefilled(
        engine.name,
        kv.hint,
        kv.report,
        read_token_ids(value),
        "" if kv.report else "no_report",
        answer=value,
    )
