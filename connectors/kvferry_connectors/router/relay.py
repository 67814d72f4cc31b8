"""Carries D's answer to the client, without what is meant for the router."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx

from kvferry_connectors.router.errors import Answer, EngineFailed, error_answer
from kvferry_connectors.router.reply import Reply
from kvferry_connectors.router.report import KVReply, read_reply
from kvferry_connectors.router.sse import EventSplitter, event_data, take_from_json, take_params
from kvferry_connectors.router.upstream import answer_of

logger = logging.getLogger("kvferry.router")

_USAGE = b'"usage"'
_ERROR = b'{"error"'
_DONE = b"[DONE]"
_AFTER_DONE_S = 1.0


@dataclass
class Seen:
    """What the router learnt from an answer while it passed."""

    kv: KVReply = field(default_factory=KVReply)
    prompt_tokens: int = 0
    output_tokens: int = 0
    """As the engine's usage says; 0 for a stream whose client did not ask for usage."""
    error: bool = False


async def relay_stream(
    engine: str, response: httpx.Response, reply: Reply, seen: Seen, event_bytes_max: int
) -> None:
    """Sends every event as soon as it is whole.

    Raises:
        EngineFailed: the stream ended before its end mark.
        RouterError: an event exceeds the bound.
    """
    splitter = EventSplitter(event_bytes_max)
    parts = response.aiter_raw()
    async for data in parts:
        passed = []
        done = False
        for event in splitter.feed(data):
            passed.append(_look(event, seen))
            done = event_data(event) == _DONE
        content = b"".join(passed)
        if done:
            # Many clients close at the end mark, so it must be the end for the turn too.
            await reply.end_stream(content)
            await _finish(parts)
            return
        if content:
            await reply.stream(content)
    raise EngineFailed(engine, "ended its stream early")


async def _finish(parts: AsyncIterator[bytes]) -> None:
    """Reads to the end of an answer that is over, so that its connection can be used again."""
    try:
        async with asyncio.timeout(_AFTER_DONE_S):
            async for _ in parts:
                continue
    except (TimeoutError, httpx.TransportError) as error:
        logger.debug("an engine did not close its finished stream (%s)", error)


async def relay_whole(response: httpx.Response, reply: Reply, seen: Seen) -> None:
    """Sends an answer that is not a stream, once it is there."""
    await reply.whole(clean(answer_of(response, await response.aread()), seen))


def clean(answer: Answer, seen: Seen) -> Answer:
    """The answer without ``kv_transfer_params``, which go to ``seen``."""
    content, params = take_from_json(answer.content)
    if content is None:
        logger.error("an engine's answer names kv_transfer_params but is no JSON: withheld")
        return error_answer(502, "upstream_error", "the engine's answer cannot be read")
    if params is not None:
        seen.kv = read_reply(params)
    _read_usage(content, seen)
    seen.error = answer.status >= 400
    return Answer(answer.status, content, answer.headers)


def _look(event: bytes, seen: Seen) -> bytes:
    cleaned, params = take_params(event)
    if params is not None:
        seen.kv = read_reply(params)
    if _USAGE in cleaned:
        _read_usage(event_data(cleaned), seen)
    if event_data(cleaned).startswith(_ERROR):
        seen.error = True
    return cleaned


def _read_usage(content: bytes, seen: Seen) -> None:
    try:
        value = json.loads(content)
    except ValueError:
        return
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return
    for name, target in (
        ("prompt_tokens", "prompt_tokens"),
        ("completion_tokens", "output_tokens"),
    ):
        if type(usage.get(name)) is int:
            setattr(seen, target, usage[name])
