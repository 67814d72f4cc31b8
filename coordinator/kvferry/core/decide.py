"""Command to events and effects. Pure: the caller appends, folds, then performs.

Whether this replica leads the space is for the caller to know; the events carry the term that the
state says is in force.
"""

from __future__ import annotations

from kvferry.core.commands import (
    Command,
    Heard,
    NodeSilent,
    RecordCheckpoint,
    SetPolicy,
    SetRetention,
    TakeLead,
)
from kvferry.core.decision import NOTHING, Decision
from kvferry.core.effects import SendControl
from kvferry.core.events import Checkpoint, LeaderElected, NodeLeft, PolicySet
from kvferry.core.evolve_nodes import kept_after
from kvferry.core.messages import Control
from kvferry.core.retention_settings import AS_STARTED, SETTINGS, RetentionSettings, problem
from kvferry.core.slots_decide import decide_slot
from kvferry.core.state import (
    CLOSED,
    FENCED,
    JOINED,
    LEFT,
    MODES,
    NodeState,
    SpaceState,
    State,
)

__all__ = ["Decision", "decide"]


def decide(state: State, command: Command, now_ms: int) -> Decision:
    """Decide one command.

    Args:
        state: the fold so far.
        command: what was asked or noticed.
        now_ms: the present on the server's clock, Unix milliseconds. No event depends on it, only
            words such as for how long a slot is lent; it is here so that none ever reads a clock.
    """
    match command:
        case TakeLead():
            return _take_lead(state, command)
        case NodeSilent():
            return _node_silent(state, command)
        case Heard():
            return _heard(state, command)
        case SetPolicy():
            return _set_policy(state, command)
        case SetRetention():
            return _set_retention(state, command)
        case RecordCheckpoint():
            return _record_checkpoint(state, command)
        case _:
            return decide_slot(state.spaces.get(command.space) or SpaceState(), command, now_ms)


def _take_lead(state: State, command: TakeLead) -> Decision:
    known = state.spaces.get(command.space)
    term = max(known.term if known is not None else 0, command.above) + 1
    elected = LeaderElected(term=term, replica=command.replica, cost=command.cost)
    return Decision(events=((command.space, elected),))


def _node_silent(state: State, command: NodeSilent) -> Decision:
    space = state.spaces.get(command.space)
    node = space.nodes.get(command.node) if space is not None else None
    if space is None or node is None or node.status not in (JOINED, FENCED):
        return NOTHING
    if (node.incarnation, node.epoch) != (command.incarnation, command.epoch):
        return NOTHING
    left = NodeLeft(
        term=space.term,
        node=node.name,
        incarnation=node.incarnation,
        epoch=node.epoch,
        why=f"silent for {command.silent_ms / 1_000:.1f} s",
    )
    return Decision(events=((command.space, left),))


def _heard(state: State, command: Heard) -> Decision:
    space = state.spaces.get(command.space)
    node = space.nodes.get(command.node) if space is not None else None
    if space is None or node is None:
        return _resync(command, "the ledger does not know this node")
    if command.incarnation in node.superseded:
        why = f"process {node.incarnation} joined later under the name {node.name}"
        return _control(command, "duplicate", why)
    if command.incarnation != node.incarnation:
        return _resync(command, "this process has not joined")
    if command.epoch < node.epoch:
        return NOTHING  # it was on its way when the node began its present epoch
    if command.epoch > node.epoch:
        return _resync(command, f"the ledger knows epoch {node.epoch} of this process")
    if node.status in (LEFT, CLOSED, FENCED):
        return _resync(command, f"{node.status}: {node.why}")
    if space.policy_version == 0:
        return NOTHING
    return Decision(effects=(_policy(space, node),))


def _resync(command: Heard, why: str) -> Decision:
    """Ask for a new epoch, unless what is missing may just not have been read yet."""
    return NOTHING if command.lagging else _control(command, "resync", why)


def _control(command: Heard, verb: str, why: str) -> Decision:
    control = Control(verb=verb, why=why, incarnation=command.incarnation)
    effect = SendControl(space=command.space, node=command.node, control=control)
    return Decision(effects=(effect,))


def _set_policy(state: State, command: SetPolicy) -> Decision:
    space = state.spaces.get(command.space)
    refused = _no_such(state, command.space, command.node)
    if space is None or refused:
        return Decision(refused=refused)
    if command.mode not in MODES:
        return Decision(refused=f"mode {command.mode!r} is not one of {', '.join(MODES)}")
    told = _concerned(space, command.node)
    if _in_force(space, command):
        return Decision(effects=tuple(_policy(space, node) for node in told))
    version = space.policy_version + 1
    event = PolicySet(
        term=space.term, version=version, mode=command.mode, node=command.node, who=command.who
    )
    effects = tuple(
        _tell(node, command.mode, space.retention_of(node.name), version) for node in told
    )
    return Decision(events=((command.space, event),), effects=effects)


def _set_retention(state: State, command: SetRetention) -> Decision:
    space = state.spaces.get(command.space)
    refused = _no_such(state, command.space, command.node)
    refused = refused or problem(command.settings, command.unset)
    if not refused and not command.unset and command.settings == AS_STARTED:
        refused = f"nothing is to be set; give one of {', '.join(SETTINGS)}"
    if space is None or refused:
        return Decision(refused=refused)
    told = _concerned(space, command.node)
    event = PolicySet(
        term=space.term,
        version=space.policy_version + 1,
        mode=space.mode_of(command.node) if command.node else space.mode,
        node=command.node,
        who=command.who,
        retention=command.settings if command.settings != AS_STARTED else None,
        unset=command.unset,
    )
    whole, by_node = kept_after(space, event)
    if (whole, by_node) == (space.retention, space.retentions):
        return Decision(effects=tuple(_policy(space, node) for node in told))
    effects = tuple(
        _tell(
            node,
            space.mode_of(node.name),
            by_node.get(node.name, AS_STARTED).over(whole),
            event.version,
        )
        for node in told
    )
    return Decision(events=((command.space, event),), effects=effects)


def _no_such(state: State, name: str, node: str) -> str:
    """Why nothing can be set for a space or a node of it; empty if it can."""
    space = state.spaces.get(name)
    if space is None:
        known = ", ".join(sorted(state.spaces)) or "none yet; start an engine first"
        return f"there is no space {name!r}; known spaces: {known}"
    if node and node not in space.nodes:
        known = ", ".join(sorted(space.nodes)) or "none yet"
        return f"there is no node {node!r} in {name}; known nodes: {known}"
    return ""


def _concerned(space: SpaceState, node: str) -> list[NodeState]:
    """The nodes that hear of a policy for ``node``, or for all."""
    return [one for one in space.nodes.values() if one.status == JOINED and node in ("", one.name)]


def _in_force(space: SpaceState, command: SetPolicy) -> bool:
    if space.policy_version == 0:
        return False
    if command.node:
        return space.mode_of(command.node) == command.mode
    return space.mode == command.mode and not space.modes


def _record_checkpoint(state: State, command: RecordCheckpoint) -> Decision:
    space = state.spaces.get(command.space)
    event = Checkpoint(
        term=space.term if space is not None else 0,
        position=command.position,
        digest=command.digest,
        fingerprint=command.fingerprint,
        object=command.object,
    )
    return Decision(events=((command.space, event),))


def _policy(space: SpaceState, node: NodeState) -> SendControl:
    mode, retention = space.mode_of(node.name), space.retention_of(node.name)
    return _tell(node, mode, retention, space.policy_version)


def _tell(node: NodeState, mode: str, retention: RetentionSettings, version: int) -> SendControl:
    control = Control(
        verb="policy",
        mode=mode,
        version=version,
        retention=retention,
        incarnation=node.incarnation,
    )
    return SendControl(space=node.space, node=node.name, control=control)
