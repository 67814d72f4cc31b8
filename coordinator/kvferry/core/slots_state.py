"""What the ledger says of decode slots, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvferry.core.slots import DECODING, FREE, HELD, SlotNode

SLOT_NODES_MAX = 256
"""Decode nodes of a ledger; above it the first that is drained and free is forgotten."""
LASTED_SHARE = 0.1
"""Weight of a new lease in the running mean of how long they last."""
RETRY_UNKNOWN_MS = 1_000.0
"""While no lease has ended yet."""
RETRY_MIN_MS, RETRY_MAX_MS = 200.0, 30_000.0


class SlotState(msgspec.Struct, kw_only=True):
    """One node and its slot. What describes a lease is empty while nobody has it."""

    node: SlotNode
    phase: str = FREE
    drained: bool = False
    fence: int = 0
    """Of the present lease or of the last one."""
    holder: str = ""
    request: str = ""
    session: str = ""
    number: int = 0
    granted_ms: int = 0
    since_ms: int = 0
    """When the phase was entered, server store time."""
    why: str = ""
    """What the last change said."""
    last: str = ""
    """How the last lease ended."""


class Slots(msgspec.Struct, kw_only=True):
    """All decode nodes of a space."""

    nodes: dict[str, SlotState] = {}
    fence: int = 0
    """The highest that was ever given."""
    lasted_ms: float = 0.0
    """Running mean over leases that ended; 0 before the first."""
    granted: int = 0
    ended: dict[str, int] = {}
    """Leases that ended, by how; ``lost`` are those whose record is gone."""


def held_by(slots: Slots, holder: str) -> list[SlotState]:
    """Leases that a router process has to itself."""
    return [one for one in slots.nodes.values() if one.phase in HELD and one.holder == holder]


def leased(slots: Slots) -> list[SlotState]:
    """Slots with a lease that has not ended, lost sight of or not."""
    return [one for one in slots.nodes.values() if one.holder]


def retry_after_ms(slots: Slots, candidates: Iterable[str], now_ms: int) -> float:
    """When one of these nodes may become free, if its lease lasts as long as leases do."""
    if not slots.lasted_ms:
        return RETRY_UNKNOWN_MS
    known = [slots.nodes[name] for name in candidates if name in slots.nodes]
    left = [slots.lasted_ms - max(0, now_ms - one.granted_ms) for one in known if one.holder]
    return min(RETRY_MAX_MS, max(RETRY_MIN_MS, min(left, default=RETRY_UNKNOWN_MS)))


def held(slot: SlotState, now_ms: int = 0) -> str:
    """Who has a slot, and with ``now_ms`` for how long, in words."""
    name = slot.node.name
    since = f" for {max(0, now_ms - slot.since_ms) / 1_000:.1f} s" if now_ms else ""
    drained = ", drained" if slot.drained else ""
    if slot.phase == FREE:
        return f"{name} is free{drained}"
    if slot.phase in HELD:
        doing = "decoding" if slot.phase == DECODING else "lent"
        return (
            f"{name} is {doing}{since} for request {slot.request} of router {slot.holder} "
            f"(fence {slot.fence}){drained}"
        )
    whose = f" after request {slot.request} of router {slot.holder}" if slot.holder else ""
    return f"{name} must first be seen idle{since}{whose}{drained}"


def forgettable(slots: Slots) -> str | None:
    """The node that makes room for another: the first that is drained and free."""
    for name, slot in slots.nodes.items():
        if slot.drained and slot.phase == FREE:
            return name
    return None
