"""Decisions about decode slots: who gets one, and whether a lease may go on or end as said."""

from __future__ import annotations

import msgspec

from kvferry.core.decision import NOTHING, Decision
from kvferry.core.events import AnyEvent, SlotChanged
from kvferry.core.slots import (
    ABANDONED,
    CONFIRMED,
    DECODING,
    DRAINED,
    ENDS,
    FOUND,
    FREE,
    GRANT,
    OPENED,
    REFUSED,
    REGISTERED,
    SLOT_TABLE,
    UNSURE,
)
from kvferry.core.slots_commands import ChangeSlot, DrainSlot, LendSlot, NameSlot, SlotCommand
from kvferry.core.slots_state import SLOT_NODES_MAX, SlotState, forgettable, held, held_by
from kvferry.core.state import SpaceState


def decide_slot(space: SpaceState, command: SlotCommand, now_ms: int) -> Decision:
    """Decide one command about slots; see :func:`kvferry.core.decide.decide`."""
    match command:
        case NameSlot():
            return _name(space, command)
        case DrainSlot():
            return _drain(space, command)
        case LendSlot():
            return _lend(space, command, now_ms)
        case ChangeSlot():
            return _change(space, command)


def _name(space: SpaceState, command: NameSlot) -> Decision:
    node, slots = command.node, space.slots
    known = slots.nodes.get(node.name)
    if known is not None and known.node == node:
        return NOTHING
    for other in slots.nodes.values():
        if other.node.name != node.name and not {other.node.http, other.node.control}.isdisjoint(
            (node.http, node.control)
        ):
            return _no(
                "address",
                f"node {other.node.name} has the address {other.node.http}, {other.node.control} "
                f"already: two names for one slot would lend it twice. Call {node.name} "
                f"{other.node.name} on every router",
            )
    if known is not None and known.phase != FREE:
        return _no("in_use", f"{held(known)}; give it another address once it is free")
    if known is None and len(slots.nodes) >= SLOT_NODES_MAX and forgettable(slots) is None:
        return _no(
            "too_many",
            f"{len(slots.nodes)} decode nodes are known, the most there may be; drain those that "
            "are gone with `kvferry drain NODE`",
        )
    found = known is None and command.above > 0
    event = SlotChanged(
        term=space.term,
        node=node.name,
        change=FOUND if found else REGISTERED,
        fence=max(command.above, slots.fence) if found else 0,
        http=node.http,
        control=node.control,
        profile=node.profile,
        idle_limit_ms=node.idle_limit_ms,
        who=command.who,
    )
    return Decision(events=_stored(command.space, event))


def _drain(space: SpaceState, command: DrainSlot) -> Decision:
    slot = space.slots.nodes.get(command.node)
    if slot is None:
        return _unknown(space, (command.node,))
    if slot.drained == command.drained:
        return NOTHING
    event = SlotChanged(
        term=space.term,
        node=command.node,
        change=DRAINED if command.drained else OPENED,
        who=command.who,
    )
    return Decision(events=_stored(command.space, event))


def _lend(space: SpaceState, command: LendSlot, now_ms: int) -> Decision:
    slots = space.slots
    mine = held_by(slots, command.holder)
    has = next((one for one in mine if one.request == command.request), None)
    over: tuple[SlotChanged, ...] = ()
    if has is not None:
        if command.number <= has.number:
            return NOTHING  # the answer got lost; the lease is the answer
        if (has.phase, REFUSED) not in SLOT_TABLE:
            return _no("in_use", f"{held(has)} already")
        # Who asks anew never heard of that lease, and what it says from now on is of another one.
        over = (_about(space, has, REFUSED, "its router never heard of the lease"),)
    known = [slots.nodes[name] for name in command.candidates if name in slots.nodes]
    free = (one for one in known if not one.drained and (one.phase == FREE or one is has))
    chosen = next(free, None)
    if chosen is None:
        refusal = _none_free(known, now_ms) if known else _unknown(space, command.candidates)
        return msgspec.structs.replace(refusal, events=_stored(command.space, *over))
    grant = SlotChanged(
        term=space.term,
        node=chosen.node.name,
        change=GRANT,
        fence=slots.fence + 1,
        holder=command.holder,
        request=command.request,
        session=command.session,
        number=command.number,
        waited_ms=command.waited_ms,
    )
    return Decision(events=_stored(command.space, *over, grant))


def _none_free(known: list[SlotState], now_ms: int) -> Decision:
    working = [one for one in known if not one.drained]
    if not working:
        return _no("drained", ", ".join(f"node {one.node.name} is drained" for one in known))
    reason = "unsure" if all(one.phase == UNSURE for one in working) else "busy"
    return _no(reason, "; ".join(held(one, now_ms) for one in working))


def _change(space: SpaceState, command: ChangeSlot) -> Decision:
    slot = space.slots.nodes.get(command.node)
    if slot is None:
        return _unknown(space, (command.node,))
    if command.fence != slot.fence:
        older = command.fence < slot.fence
        return _no(
            "fence",
            f"the lease with fence {command.fence} of node {command.node} "
            + (f"is over: the slot has fence {slot.fence} now" if older else "was never given"),
        )
    ending = command.change in ENDS
    if slot.phase == FREE:
        if ending or command.change == ABANDONED:
            return NOTHING  # said again
        return _no("fence", f"the lease with fence {command.fence} ended: {slot.last}")
    if command.holder and command.holder != slot.holder:
        return _no("holder", f"{held(slot)}, not by {command.holder}")
    if (slot.phase, command.change) in ((DECODING, CONFIRMED), (UNSURE, ABANDONED)):
        return NOTHING  # said again
    allowed = (*ENDS, CONFIRMED, ABANDONED)
    if command.change not in allowed or (slot.phase, command.change) not in SLOT_TABLE:
        return _no("phase", f"{command.change!r} does not fit: node {held(slot)}")
    return Decision(events=_stored(command.space, _about(space, slot, command.change, command.why)))


def _about(space: SpaceState, slot: SlotState, change: str, why: str) -> SlotChanged:
    """A change of the lease that a slot has."""
    return SlotChanged(
        term=space.term,
        node=slot.node.name,
        change=change,
        fence=slot.fence,
        holder=slot.holder,
        request=slot.request,
        session=slot.session,
        why=why,
    )


def _stored(space: str, *events: SlotChanged) -> tuple[tuple[str, AnyEvent], ...]:
    return tuple((space, event) for event in events)


def _unknown(space: SpaceState, names: tuple[str, ...]) -> Decision:
    known = ", ".join(sorted(space.slots.nodes)) or "none yet; a router names them"
    wanted = ", ".join(names) or "none"
    return _no("not_registered", f"no decode node {wanted} is known; known: {known}")


def _no(reason: str, why: str) -> Decision:
    return Decision(refused=why, reason=reason)
