"""What a command comes to."""

from __future__ import annotations

import msgspec

from kvferry.core.effects import Effect
from kvferry.core.events import AnyEvent


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be stored, in order, and what is to be done after that."""

    events: tuple[tuple[str, AnyEvent], ...] = ()
    """(space, event) pairs for the space's coord lane."""
    effects: tuple[Effect, ...] = ()
    refused: str = ""
    """Why nothing is done, in plain words with the cure; empty when nothing is wrong."""
    reason: str = ""
    """With ``refused``, of decode slots: a stable word of :data:`SLOT_REFUSALS`."""


NOTHING = Decision()

SLOT_REFUSALS = (
    "busy",
    "drained",
    "unsure",
    "not_registered",
    "too_many",
    "address",
    "in_use",
    "fence",
    "holder",
    "phase",
)
