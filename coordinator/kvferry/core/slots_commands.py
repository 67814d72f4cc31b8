"""What the coordinator may be asked to decide about decode slots, or has noticed."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvferry.core.slots import SlotNode


class NameSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A router names a node."""

    space: str
    node: SlotNode
    who: str
    above: int = 0
    """Above 0 where the ledger lost its beginning: a node that is not known may have been lent,
    with fences up to this one."""


class DrainSlot(msgspec.Struct, frozen=True, kw_only=True):
    """An operator takes a node out of the pool, or with ``drained`` False puts it back."""

    space: str
    node: str
    drained: bool
    who: str = ""


class LendSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A router wants one of these nodes for one request."""

    space: str
    holder: str
    number: int
    request: str
    candidates: tuple[str, ...]
    session: str = ""
    waited_ms: float = 0.0


class ChangeSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A lease goes on or ends: ``confirmed``, ``abandoned``, or a word of ``ENDS``."""

    space: str
    node: str
    fence: int
    change: str
    holder: str = ""
    """Who says so; empty for the coordinator itself."""
    why: str = ""


SlotCommand: TypeAlias = NameSlot | DrainSlot | LendSlot | ChangeSlot
