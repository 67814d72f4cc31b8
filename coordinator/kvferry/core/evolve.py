"""Event to state. Total: odd but decodable input is counted, never an error. No clock.

A known key is ignored, a higher rev or epoch replaces, a transfer's first outcome wins. Facts
count only while their writer's (incarnation, epoch) is the one that joined; decisions only from
the term in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvferry.core import (
    evolve_nodes,
    evolve_offers,
    evolve_requests,
    evolve_transfers,
    slots_evolve,
)
from kvferry.core.applied import Applied
from kvferry.core.events import (
    BLOCKS,
    COORD,
    NAMES,
    Checkpoint,
    Event,
    Evicted,
    Gap,
    Inventory,
    LeaderElected,
    LinkProbed,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PinEnded,
    PolicySet,
    Requested,
    RequestEnded,
    Retained,
    SendBegan,
    SendEnded,
    SlotChanged,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.core.state import FENCED, JOINED, SpaceState, State
from kvferry.core.totals import bump

Touched = tuple[str, ...] | None

_FACTS: dict[type[Event], Callable[[SpaceState, Any, Applied, Any], Touched]] = {
    Retained: evolve_offers.retained,
    Evicted: evolve_offers.evicted,
    Inventory: evolve_offers.inventory,
    Requested: evolve_transfers.requested,
    Transferred: evolve_transfers.transferred,
    TransferFailed: evolve_transfers.transfer_failed,
    PinEnded: evolve_transfers.pin_ended,
    LinkProbed: evolve_transfers.link_probed,
    RequestEnded: evolve_requests.request_ended,
    TurnEnded: evolve_requests.turn_ended,
    SendBegan: evolve_requests.send,
    SendEnded: evolve_requests.send,
    NodeClosed: evolve_nodes.node_closed,
    Gap: evolve_nodes.gap,
}
_DECISIONS: dict[type[Event], Callable[[SpaceState, Applied, Any], Touched]] = {
    LeaderElected: evolve_nodes.leader_elected,
    NodeLeft: evolve_nodes.node_left,
    PolicySet: evolve_nodes.policy_set,
    Checkpoint: evolve_nodes.checkpoint,
    SlotChanged: slots_evolve.slot_changed,
}


def evolve(state: State, applied: Applied) -> None:
    """Fold one event in its place and fill in ``applied.offers``.

    Lane contiguity is :func:`kvferry.core.apply.apply_batch`'s business; everything else is
    checked here.
    """
    fold(state, applied)


def fold(state: State, applied: Applied) -> bool:
    """Like :func:`evolve`; False if the event is void: it counts in ``dropped`` only."""
    lane = applied.lane
    if lane == BLOCKS:  # another stream: detail that no decision reads
        return False
    space = state.space(applied.space)
    event = applied.entry.event
    kind = type(event)
    touched: Touched
    if lane == COORD:
        decision = _DECISIONS.get(kind)
        if decision is not None and not _in_force(space, applied, event):
            bump(state.dropped, "deposed")
            return False
        touched = decision(space, applied, event) if decision is not None else _odd(space, kind)
    elif kind is NodeJoined:
        joined = evolve_nodes.node_joined(space, applied, event)  # type: ignore[arg-type]
        if joined is None:
            bump(state.dropped, "void")
            return False
        touched = joined
    else:
        node = space.nodes.get(applied.node)
        if (
            node is None
            or node.status != JOINED
            or node.epoch != applied.epoch
            or node.incarnation != applied.incarnation
        ):
            bump(state.dropped, "void")
            return False
        fact = _FACTS.get(kind)
        touched = fact(space, node, applied, event) if fact is not None else _odd(space, kind)
    events, name = space.totals.events, NAMES[kind]
    events[name] = events.get(name, 0) + 1
    if touched:
        applied.offers = touched
    return True


def fence(state: State, space: str, node: str, why: str) -> None:
    """Stop believing a node's record until its next epoch; what it offered stays, not trusted."""
    known = state.space(space).nodes[node]
    if known.status == JOINED:
        known.status, known.why = FENCED, why
        known.inventory = []


def _odd(space: SpaceState, kind: type[Event]) -> Touched:
    """An event in a lane where it does not belong."""
    bump(space.totals.strays, NAMES[kind])
    return ()


def _in_force(space: SpaceState, applied: Applied, event: Event) -> bool:
    """Whether a decision's term is the one in force. The first decision seen of a term beyond a
    truncated stream's beginning stands for its election."""
    term = getattr(event, "term", 0)
    if type(event) is LeaderElected:
        return term > space.term
    if term > space.term:
        space.term, space.leader, space.cost = term, applied.node, ""
    return bool(term == space.term and applied.node == space.leader)
