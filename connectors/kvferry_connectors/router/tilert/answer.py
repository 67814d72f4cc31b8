"""What a node generates becomes the answer to the client."""

from __future__ import annotations

from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.bodies import Body, Kind
from kvferry_connectors.router.decode import Decoded
from kvferry_connectors.router.errors import bad_request
from kvferry_connectors.router.reply import Reply
from kvferry_connectors.router.tilert.call import DecodeCall
from kvferry_connectors.router.tilert.chunks import Maker
from kvferry_connectors.router.tilert.first import First
from kvferry_connectors.router.tilert.tokens import Detokenizer

COMPLETION_TOKENS = 16
"""Of a completion that names no number, as vLLM has it."""
UNBOUNDED_TOKENS = 1 << 20
"""Of a chat that names none: a node ends at its own length."""


def output_bound(kind: Kind, body: Body) -> int:
    """How many tokens a request may get.

    Raises:
        Answered: with 400, if it names no positive whole number.
    """
    names = ("max_completion_tokens", "max_tokens") if kind is Kind.CHAT else ("max_tokens",)
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise bad_request(f'"{name}" is {value!r}: it must be a whole number of at least 1')
        return value
    return UNBOUNDED_TOKENS if kind is Kind.CHAT else COMPLETION_TOKENS


def make_maker(asked: Asked, first: First) -> Maker:
    """For the answer to a request whose prompt P has built."""
    options = asked.body.get("stream_options")
    return Maker(
        asked.kind,
        asked.id,
        first.model,
        first.prompt,
        with_ids=asked.body.get("return_token_ids") is True,
        with_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


async def answer(
    call: DecodeCall,
    maker: Maker,
    text: Detokenizer,
    first: First,
    asked: Asked,
    reply: Reply,
    decoded: Decoded,
) -> None:
    """Passes tokens on as they come, or all at the end.

    Raises:
        EngineFailed: the node failed on its way; a stream may have begun.
    """
    decoded.seen.prompt_tokens = len(first.prompt)
    parts: list[str] = []
    finish = ""
    async for ids in call.tokens():
        if first.ends:
            # The model ended at once: its end token is no part of the text.
            ids, piece, finish = ids[:1], "", "stop"
        else:
            piece = text.push(ids)
        parts.append(piece)
        if asked.stream:
            await reply.stream(maker.chunk(piece, ids))
        else:
            maker.output_ids += ids
        decoded.seen.output_tokens = len(maker.output_ids)
        if first.ends:
            call.cancel()
            break
    finish = finish or ("length" if call.finish == "length" else "stop")
    decoded.outcome = "ok"
    if asked.stream:
        await reply.end_stream(maker.end(finish))
    else:
        await reply.whole(maker.whole("".join(parts), finish))
