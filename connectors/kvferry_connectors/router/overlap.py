"""P and D at the same time: D takes the prompt's blocks over while P still computes them."""

from __future__ import annotations

import asyncio
import secrets
import time

from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.context import Router, note_failure
from kvferry_connectors.router.decode import Decoded, decode
from kvferry_connectors.router.errors import Answered, EngineFailed
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.prefill import Prefilled, prefill_at
from kvferry_connectors.router.reply import Reply
from kvferry_connectors.router.report import REUSE_LINE_HEADER, reuse_line
from kvferry_connectors.router.sessions import Known

_LEFT_MS = 60_000
"""A hint must live for so long, that a request does not find it expired when its turn comes."""


def followable(router: Router, asked: Asked, known: Known | None) -> Engine | None:
    """The P of this turn, if D can follow it: its last hint proves to D who and where it is."""
    if not router.settings.overlap or not asked.single:
        return None
    engine = router.prefill.pick(known.prefill if known else "", 0, ())
    if engine is None or engine.hint is None:
        return None
    expires_ms = engine.hint.get("expires_ms")
    if type(expires_ms) is not int or expires_ms < time.time() * 1000 + _LEFT_MS:
        return None
    return engine


async def overlap(
    router: Router,
    asked: Asked,
    session: str,
    known: Known | None,
    engine: Engine,
    reply: Reply,
    decoded: Decoded,
) -> Prefilled | None:
    """Runs the turn on ``engine`` and on a D at once.

    Returns:
        What P said; ``None`` if P failed before D had anything to say: the turn begins again.

    Raises:
        Answered: P refused the request itself, with 4xx.
    """
    name = secrets.token_hex(16)
    follows = Prefilled(engine.name, engine.hint, miss="no_report", follow=name)
    reply.headers[REUSE_LINE_HEADER] = reuse_line(None, follows.miss)
    prefilling = asyncio.create_task(
        prefill_at(router, asked, session, known, engine, name), name="prefill"
    )
    decoding = asyncio.create_task(
        decode(router, asked, session, known, follows, reply, decoded), name="decode"
    )
    try:
        await asyncio.wait({prefilling, decoding}, return_when=asyncio.FIRST_COMPLETED)
        prefilled = follows
        if prefilling.done():
            try:
                prefilled = prefilling.result()
                reply.headers[REUSE_LINE_HEADER] = reuse_line(prefilled.report, prefilled.miss)
            except EngineFailed as error:
                note_failure(router, asked, error)
                if not reply.started:
                    return None
                prefilled = Prefilled(miss="prefill_down")
            except Answered:
                if not reply.started:
                    raise
        await decoding
        return prefilled
    finally:
        # Also where D went on without P: what P still computes is of no use to anybody.
        for task in (prefilling, decoding):
            task.cancel()
        await asyncio.gather(prefilling, decoding, return_exceptions=True)
