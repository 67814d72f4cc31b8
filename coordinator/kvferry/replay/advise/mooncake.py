"""Requests of a trace in Mooncake's format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvferry.replay.advise.prompts import Prompt
from kvferry.replay.trace import BLOCK_TOKENS, TURN_BLOCKS_MIN, trace_lines


def mooncake_prompts(file: Iterable[bytes], name: str) -> Iterator[Prompt]:
    """The requests of a trace's lines; raises as :func:`kvferry.replay.trace.trace_lines`."""
    for at_s, tokens, _, ids in trace_lines(file, name):
        chain = tuple(ids[: (tokens - 1) // BLOCK_TOKENS])
        yield Prompt(
            at_s=at_s,
            tokens=tokens,
            chain=chain,
            chunk_tokens=BLOCK_TOKENS,
            marks=chain,
            end=chain[-1] if len(chain) >= TURN_BLOCKS_MIN else None,
        )
