"""How nodes come and go, and what the leader decides."""

from __future__ import annotations

from kvferry.core.applied import Applied
from kvferry.core.events import (
    Checkpoint,
    Gap,
    LeaderElected,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PolicySet,
)
from kvferry.core.evolve_offers import end_offers
from kvferry.core.evolve_transfers import fail_open
from kvferry.core.retention_settings import AS_STARTED, RetentionSettings
from kvferry.core.state import (
    CLOSED,
    FENCED,
    JOINED,
    LEFT,
    NODES_MAX,
    SUPERSEDED_MAX,
    NodeState,
    SpaceState,
)
from kvferry.core.totals import bump


def node_joined(space: SpaceState, applied: Applied, event: NodeJoined) -> tuple[str, ...] | None:
    """A record begins. None if it is void: superseded, known, or at odds with its envelope."""
    if (event.incarnation, event.epoch) != (applied.incarnation, applied.epoch):
        bump(space.totals.strays, "node_joined")
        return None
    known = space.nodes.get(applied.node)
    touched: tuple[str, ...] = ()
    superseded: list[str] = []
    if known is not None:
        if event.incarnation in known.superseded:
            return None
        superseded = known.superseded
        if known.incarnation == event.incarnation:
            if event.epoch <= known.epoch:
                bump(space.totals.repeated, "node_joined")
                return None
        else:
            superseded = [*superseded, known.incarnation][-SUPERSEDED_MAX:]
            touched = end_offers(space, known.name)
            fail_open(space, known.name, applied.position.stored_ms)
    elif len(space.nodes) >= NODES_MAX:
        _forget_one(space)
    space.nodes[applied.node] = NodeState(
        name=applied.node,
        space=applied.space,
        incarnation=event.incarnation,
        epoch=event.epoch,
        address=event.address,
        block_size=event.block_size,
        components=dict(event.components),
        backends=event.backends,
        blocks=event.blocks,
        block_bytes=event.block_bytes,
        host_blocks=event.host_blocks,
        warnings=event.warnings,
        version=event.version,
        role=event.role,
        lease_blocks=event.lease_blocks,
        lease_ms=event.lease_ms,
        watermark_blocks=event.watermark_blocks,
        min_pull_tokens=event.min_pull_tokens,
        retain_max_ms=event.retain_max_ms,
        joined_ms=applied.position.stored_ms,
        superseded=superseded,
    )
    return touched


def node_closed(
    space: SpaceState, node: NodeState, applied: Applied, event: NodeClosed
) -> tuple[str, ...]:
    """A clean stop."""
    if event.incarnation != node.incarnation:
        bump(space.totals.strays, "node_closed")
        return ()
    return _depart(space, node, CLOSED, "closed", applied.position.stored_ms)


def node_left(space: SpaceState, applied: Applied, event: NodeLeft) -> tuple[str, ...]:
    """The leader gave a node up; matches exactly one (incarnation, epoch)."""
    node = space.nodes.get(event.node)
    if node is None or (node.incarnation, node.epoch) != (event.incarnation, event.epoch):
        bump(space.totals.strays, "node_left")
        return ()
    if node.status not in (JOINED, FENCED):
        bump(space.totals.repeated, "node_left")
        return ()
    return _depart(space, node, LEFT, event.why, applied.position.stored_ms)


def gap(space: SpaceState, node: NodeState, applied: Applied, event: Gap) -> None:
    """Events that were handed over and not stored."""
    bump(space.totals.gaps, event.lane, event.count)


def leader_elected(space: SpaceState, applied: Applied, event: LeaderElected) -> None:
    """A new term. That it is higher than the known one is checked before."""
    space.term, space.leader, space.cost = event.term, event.replica, event.cost


def policy_set(space: SpaceState, applied: Applied, event: PolicySet) -> None:
    """A mode or how to keep, for a node, or for the whole space including nodes that had their
    own."""
    if event.version <= space.policy_version:
        bump(space.totals.repeated, "policy_set")
        return
    space.policy_version = event.version
    if event.keeps:
        space.retention, space.retentions = kept_after(space, event)
    elif event.node:
        space.modes[event.node] = event.mode
        if event.mode == space.mode:
            del space.modes[event.node]
    else:
        space.mode = event.mode
        space.modes.clear()


def kept_after(
    space: SpaceState, event: PolicySet
) -> tuple[RetentionSettings, dict[str, RetentionSettings]]:
    """What is set of how nodes keep after a policy: for the space, and by node."""
    given = event.retention or AS_STARTED
    named = (*given.given(), *event.unset)
    if event.node:
        own = given.over(space.retentions.get(event.node, AS_STARTED).without(event.unset))
        by_node = {**space.retentions, event.node: own}
        whole = space.retention
    else:
        by_node = {node: own.without(named) for node, own in space.retentions.items()}
        whole = given.over(space.retention.without(event.unset))
    same = whole.given().items()
    by_node = {
        node: own.without(name for name, value in own.given().items() if (name, value) in same)
        for node, own in by_node.items()
    }
    return whole, {node: own for node, own in by_node.items() if own != AS_STARTED}


def checkpoint(space: SpaceState, applied: Applied, event: Checkpoint) -> None:
    """A snapshot is stored."""
    space.checkpoint = max(space.checkpoint, event.position)


def _depart(
    space: SpaceState, node: NodeState, status: str, why: str, stored_ms: int
) -> tuple[str, ...]:
    node.status, node.why = status, why
    node.inventory = []
    for lane in node.lanes.values():
        lane.held.clear()
    fail_open(space, node.name, stored_ms)
    return end_offers(space, node.name)


def _forget_one(space: SpaceState) -> None:
    for name, node in space.nodes.items():
        if node.status in (LEFT, CLOSED):
            del space.nodes[name]
            return
