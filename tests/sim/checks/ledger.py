"""What the ledger says is what the nodes have, once everything has come to rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvferry.core.events import BLOCKS, FACTS, NodeJoined
from kvferry.core.leases import CACHE
from kvferry.core.state import JOINED, SpaceState
from kvferry.replay.step import read_batch

if TYPE_CHECKING:
    from tests.sim.world.node import Node
    from tests.sim.world.world import World

CHECK = "ledger"


def level(world: World) -> bool:
    """Whether nothing is on its way into the ledger, or from there to a coordinator."""
    return not _differences(world)


def check(world: World) -> None:
    """At the end."""
    for what in _differences(world):
        world.violations.add(CHECK, what)


def _differences(world: World) -> list[str]:
    if world.ledger is None:
        return []
    found: list[str] = []
    nodes = [node for node in world.nodes.values() if not _gave_way(world, node)]
    for node in nodes:
        found += _unsaid(node)
    last = world.ledger.history[-1].seq if world.ledger.history else 0
    leaders = []
    for replica in world.replicas.values():
        coordinator = replica.coordinator
        if coordinator is None or coordinator.projector.state.position < last:
            found.append(f"{replica.name} has not folded up to {last}")
            continue
        if coordinator.standing.leading:
            leaders.append(replica.name)
        for node in nodes:
            found += [f"{replica.name}: {what}" for what in _as_known(coordinator, node)]
    if world.replicas and len(leaders) != 1:
        found.append(f"leaders: {leaders}")
    return found


def _gave_way(world: World, node: Node) -> bool:
    """Of two processes with one name the later to join counts, which need not be the younger: the
    other one stays silent until somebody starts it again."""
    if node.side is None or node.side.agent.state != "duplicate":
        return False
    assert world.ledger is not None
    joined: dict[str, int] = {}
    for stored in world.ledger.history:
        batch = read_batch(stored)
        if batch.node == node.name and any(type(one.event) is NodeJoined for one in batch.entries):
            joined.setdefault(batch.incarnation, stored.seq)
    return max(joined, key=joined.__getitem__, default="") != node.side._incarnation


def _unsaid(node: Node) -> list[str]:
    """What the node's agent has not stored yet."""
    side = node.side
    if side is None:
        return [f"{node.name} is not built"]
    if side.agent.state != "joined":
        return [f"the agent of {node.name} is {side.agent.state}: {side.agent.why}"]
    return [
        f"{waiting} events of lane {lane} of {node.name} wait"
        for lane in (FACTS, BLOCKS)
        if (waiting := side.outbox.counts(lane).waiting)
    ]


def _as_known(coordinator: Any, node: Node) -> list[str]:
    """How a coordinator's state differs from the node itself."""
    assert node.side is not None
    spaces: dict[str, SpaceState] = coordinator.projector.state.spaces
    joined = node.side._joiner.joined
    space = spaces.get(joined.space) if joined is not None else None
    known = space.nodes.get(node.name) if space is not None else None
    if space is None or known is None or known.status != JOINED:
        return [f"{node.name} is {known.status if known is not None else 'not known'}"]
    if known.incarnation != node.side._incarnation:
        return [f"{node.name} is known as its process {known.incarnation}"]
    said = {
        offer.offer: offer.count
        for offer in space.offers.values()
        if offer.node == node.name and offer.tier == CACHE
    }
    offers = node.side._book._offers._offers
    has = {name: offer.keep for name, offer in offers.items()}
    if said != has:
        differing = sorted(
            (name, said.get(name), has.get(name))
            for name in said.keys() | has.keys()
            if said.get(name) != has.get(name)
        )
        return [f"offers of {node.name} (id, known, in its book): {differing[:5]}"]
    return []
