"""How slots change by what the leader decided. Total: what does not fit is counted and ignored."""

from __future__ import annotations

from kvferry.core.applied import Applied
from kvferry.core.events import SlotChanged
from kvferry.core.slots import (
    ABANDONED,
    CONFIRMED,
    DRAINED,
    ENDS,
    FOUND,
    FREE,
    GRANT,
    IDLE_LIMIT_MS,
    OPENED,
    REGISTERED,
    SLOT_TABLE,
    UNKNOWN,
    UNSURE,
    SlotNode,
)
from kvferry.core.slots_state import LASTED_SHARE, SLOT_NODES_MAX, Slots, SlotState, forgettable
from kvferry.core.state import SpaceState
from kvferry.core.totals import add, bump

LOST = "lost"


def slot_changed(space: SpaceState, applied: Applied, event: SlotChanged) -> None:
    """One change of one slot."""
    slots = space.slots
    slot = slots.nodes.get(event.node)
    phase = slot.phase if slot is not None else UNKNOWN
    if (phase, event.change) not in SLOT_TABLE or not _fits(slots, slot, event):
        bump(space.totals.strays, "slot_changed")
        return
    stored_ms = applied.position.stored_ms
    if event.change in (REGISTERED, FOUND):
        _named(slots, slot, event, stored_ms)
        return
    assert slot is not None  # only naming leads out of ``unknown``
    slot.why = event.why
    if event.change in (DRAINED, OPENED):
        slot.drained = event.change == DRAINED
        return
    slot.phase = SLOT_TABLE[phase, event.change]
    slot.since_ms = stored_ms
    if event.change == GRANT:
        slots.fence = slot.fence = event.fence
        slots.granted = add(slots.granted, 1)
        slot.holder, slot.request, slot.session = event.holder, event.request, event.session
        slot.number, slot.granted_ms = event.number, stored_ms
    elif event.change in ENDS:
        _ended(slots, slot, event.change, stored_ms)


def lose_sight(slots: Slots, upto: int) -> None:
    """A part of the ledger up to sequence ``upto`` was not read: any node may be lent by now.

    No fence is higher than the sequence at which it was stored, so none is given twice.
    """
    slots.fence = max(slots.fence, upto)
    for slot in slots.nodes.values():
        if slot.holder:
            _ended(slots, slot, LOST, slot.since_ms)
        slot.phase, slot.fence = UNSURE, slots.fence
        slot.why = "a part of the ledger is gone"


def _fits(slots: Slots, slot: SlotState | None, event: SlotChanged) -> bool:
    """What the table does not say: fences, and that a drained node is not lent."""
    if event.change == GRANT:
        lendable = slot is not None and not slot.drained
        return lendable and event.fence > slots.fence and event.holder != ""
    if event.change in (CONFIRMED, ABANDONED, *ENDS):
        return slot is not None and event.fence == slot.fence
    return True


def _named(slots: Slots, slot: SlotState | None, event: SlotChanged, stored_ms: int) -> None:
    node = SlotNode(
        name=event.node,
        http=event.http,
        control=event.control,
        profile=event.profile,
        idle_limit_ms=event.idle_limit_ms if event.idle_limit_ms > 0 else IDLE_LIMIT_MS,
    )
    if slot is not None:
        slot.node, slot.why = node, event.why
        return
    if len(slots.nodes) >= SLOT_NODES_MAX:
        least = forgettable(slots)
        if least is None:
            return
        del slots.nodes[least]
    slot = slots.nodes[event.node] = SlotState(node=node, since_ms=stored_ms, why=event.why)
    if event.change == FOUND:
        slots.fence = max(slots.fence, event.fence)
        slot.phase, slot.fence = UNSURE, slots.fence


def _ended(slots: Slots, slot: SlotState, how: str, stored_ms: int) -> None:
    if slot.holder:
        bump(slots.ended, how)
        lasted = float(max(0, stored_ms - slot.granted_ms))
        share = LASTED_SHARE if slots.lasted_ms else 1.0
        if how != LOST:
            slots.lasted_ms += share * (lasted - slots.lasted_ms)
    slot.phase, slot.last = FREE, how
    slot.holder = slot.request = slot.session = ""
    slot.number = slot.granted_ms = 0
