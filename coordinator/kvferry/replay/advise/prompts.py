"""A recorded request, whatever file it stood in."""

from __future__ import annotations

import msgspec


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One request, in the order of their times."""

    at_s: float
    tokens: int
    chain: tuple[int, ...]
    """Names of the prompt's full chunks that somebody could share; equal names mean equal text
    from the prompt's beginning up to there."""
    chunk_tokens: float
    """Tokens of one chunk."""
    session: str = ""
    """As the file says; empty where it does not, and then the marks tell."""
    marks: tuple[int, ...] = ()
    """Places in the prompt where an earlier one may have ended, from the front."""
    covers: tuple[int, ...] = ()
    """For each mark: tokens of the prompt that were there once the turn that ends there had been
    answered. Empty where answers cannot be told from the prompt."""
    end: int | None = None
    """The mark under which a later prompt finds this one; None for one too short to recognise."""
