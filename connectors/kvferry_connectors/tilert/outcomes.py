"""How sends end."""

from __future__ import annotations

import msgspec

from kvferry_connectors.tilert.errors import ADMISSION, DONE

SENT = "sent"
REFUSED = "refused"
SENDING = "sending"


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one rank's part of a send ended. Ends exactly once."""

    request: str
    """As the engine calls it."""
    rank: int
    state: str
    """``sent``: every byte is in place and the node was told so. ``refused``: see ``reason``."""
    reason: str = ""
    """One of :data:`kvferry_connectors.tilert.errors.REASONS`."""
    detail: str = ""
    stage: str = ""
    """How far it came."""
    bytes: int = 0
    generation: int = -1
    """The node's number for this admission; -1 without one."""
    admitted_ms: float = 0.0
    """From the order to the last rank's admission."""
    total_ms: float = 0.0


class SendOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a request's send ended, over all ranks."""

    request: str
    rid: str
    target: str
    """``host:port``."""
    state: str
    reason: str = ""
    detail: str = ""
    stage: str = ""
    """How far it came: a stage of :mod:`kvferry_connectors.tilert.errors`."""
    tokens: int = 0
    bytes: int = 0
    generation: int = -1
    admitted_ms: float = 0.0
    total_ms: float = 0.0


def joined(parts: list[RankOutcome], *, rid: str, target: str, tokens: int) -> SendOutcome:
    """Sent if every rank's part was, under one admission; else refused for the first reason."""
    refused = next((part for part in parts if part.state == REFUSED), None)
    reason, detail = (refused.reason, refused.detail) if refused else ("", "")
    stage = refused.stage if refused else DONE
    generations = {part.generation for part in parts}
    if not refused and len(generations) > 1:
        reason, detail = "not_admitted", f"ranks were admitted apart, as {generations}"
        stage = ADMISSION
    return SendOutcome(
        request=parts[0].request,
        rid=rid,
        target=target,
        state=REFUSED if reason else SENT,
        reason=reason,
        detail=detail,
        stage=stage,
        tokens=tokens,
        bytes=sum(part.bytes for part in parts),
        generation=parts[0].generation,
        admitted_ms=max(part.admitted_ms for part in parts),
        total_ms=max(part.total_ms for part in parts),
    )
