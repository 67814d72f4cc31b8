"""What the coordinator may be asked to decide, or has noticed."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvferry.core.retention_settings import RetentionSettings
from kvferry.core.slots_commands import SlotCommand
from kvferry.core.state import COST_LEARNED


class TakeLead(msgspec.Struct, frozen=True, kw_only=True):
    """A replica wants to lead a space."""

    space: str
    replica: str
    cost: str = COST_LEARNED
    """How it weighs moving against computing: ``learned`` or ``off``."""
    above: int = 0
    """Terms up to this one may have been held by leaders of whom the ledger knows no more."""


class NodeSilent(msgspec.Struct, frozen=True, kw_only=True):
    """No heartbeat of this record came for ``silent_ms``."""

    space: str
    node: str
    incarnation: str
    epoch: int
    silent_ms: int


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat came."""

    space: str
    node: str
    incarnation: str
    epoch: int
    lagging: bool = False
    """The state is known to be behind the ledger: what it does not know may well be there."""


class SetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """An operator sets a mode for a node, or with ``node`` empty for the whole space."""

    space: str
    mode: str
    node: str = ""
    who: str = ""


class SetRetention(msgspec.Struct, frozen=True, kw_only=True):
    """An operator sets how a node keeps, or with ``node`` empty all nodes of the space."""

    space: str
    settings: RetentionSettings
    unset: tuple[str, ...] = ()
    """Names of settings that are to be as before anybody set them."""
    node: str = ""
    who: str = ""


class RecordCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the state at ``position`` lies under ``object``."""

    space: str
    position: int
    digest: str
    fingerprint: str
    object: str


Command: TypeAlias = (
    TakeLead | NodeSilent | Heard | SetPolicy | SetRetention | RecordCheckpoint | SlotCommand
)
