"""Decisions about decode slots: who gets one, and whether a lease may go on or end as said."""

from __future__ import annotations

from kvferry.core.decision import NOTHING, Decision
from kvferry.core.events import SlotChanged
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
            "are gone with `kvferry slots --drain NODE`",
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
    return Decision(events=((command.space, event),))


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
    return Decision(events=((command.space, event),))


def _lend(space: SpaceState, command: LendSlot, now_ms: int) -> Decision:
    slots = space.slots
    if any(one.request == command.request for one in held_by(slots, command.holder)):
        return NOTHING  # the answer got lost; the lease is the answer
    known = [slots.nodes[name] for name in command.candidates if name in slots.nodes]
    if not known:
        return _unknown(space, command.candidates)
    free = next((one for one in known if one.phase == FREE and not one.drained), None)
    if free is None:
        return _none_free(known, now_ms)
    event = SlotChanged(
        term=space.term,
        node=free.node.name,
        change=GRANT,
        fence=slots.fence + 1,
        holder=command.holder,
        request=command.request,
        session=command.session,
        number=command.number,
        waited_ms=command.waited_ms,
    )
    return Decision(events=((command.space, event),))


def _none_free(known: list[SlotState], now_ms: int) -> Decision:
    working = [one for one in known if not one.drained]
    if not working:
        return _no("drained", ", ".join(f"node {one.node.name} is drained" for one in known))
    if all(one.phase == UNSURE for one in working):
        return _no("unsure", "; ".join(held(one, now_ms) for one in working))
    return _no("busy", "; ".join(held(one, now_ms) for one in working))


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
    event = SlotChanged(
        term=space.term,
        node=command.node,
        change=command.change,
        fence=slot.fence,
        holder=slot.holder,
        request=slot.request,
        session=slot.session,
        why=command.why,
    )
    return Decision(events=((command.space, event),))


def _unknown(space: SpaceState, names: tuple[str, ...]) -> Decision:
    known = ", ".join(sorted(space.slots.nodes)) or "none yet; a router names them"
    wanted = ", ".join(names) or "none"
    return _no("not_registered", f"no decode node {wanted} is known; known: {known}")


def _no(reason: str, why: str) -> Decision:
    return Decision(refused=why, reason=reason)
