"""Invariant 3: everything ends: each request, pin, transfer, load, lease and reserved slot."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvferry.core.events import Event, PinEnded, Requested, TransferFailed, Transferred

if TYPE_CHECKING:
    from tests.sim.world.node import Node
    from tests.sim.world.world import World

CHECK = "endings"


def still_open(node: Node) -> list[str]:
    """What has not ended yet on a node, in words."""
    side = node.side
    if side is None or side._joiner.joined is None:
        return [f"{node.name} has not joined"]
    found = {
        "requests": len(node.engine.requests),
        "loads": len(node.engine.loads),
        "pins": side._table.pins(),
        "transfers": side._pulls.open_count(),
        "reserved slots": side.outbox.reserved,
        "leases": len(side._exports.leasing) if side._exports is not None else 0,
        "jobs": sum(len(worker._jobs) for worker in node.workers),
        "steps to translate": side.outbox.untranslated,
    }
    return [f"{count} {what} of {node.name}" for what, count in found.items() if count]


def outcome_needs_room(world: World, event: Event) -> None:
    """Called for a fact that found no room in its outbox: outcomes have theirs reserved."""
    if isinstance(event, Transferred | TransferFailed):
        world.violations.add(CHECK, f"the outcome of {event.transfer} found no room")


def check(world: World) -> None:
    """At the end, when everything has had its time."""
    for client in world.clients:
        if not client.done:
            world.violations.add(CHECK, f"{client.process.name} still waits")
    for node in world.nodes.values():
        for what in still_open(node):
            world.violations.add(CHECK, f"still open: {what}")
        free = node.pool.get_num_free_blocks()
        if not node.engine.requests and free != world.knobs.blocks - 1:
            world.violations.add(
                CHECK, f"{node.name} has {free} free blocks of {world.knobs.blocks - 1}"
            )
    _outcomes(world)
    _pins(world)


def _outcomes(world: World) -> None:
    """One outcome for each transfer of a process that lived on, and none without a transfer."""
    opened: Counter[tuple[str, str]] = Counter()
    ended: Counter[tuple[str, str]] = Counter()
    for node, life, event in world.facts:
        if isinstance(event, Requested) and event.transfer:
            opened[life, event.transfer] += 1
        elif isinstance(event, Transferred | TransferFailed):
            ended[life, event.transfer] += 1
            if ended[life, event.transfer] > 1:
                world.violations.add(CHECK, f"{event.transfer} of {node} has a second outcome")
            if not opened[life, event.transfer]:
                world.violations.add(CHECK, f"{event.transfer} of {node} ended but never began")
    for node in world.nodes.values():
        for (life, transfer), times in opened.items():
            if life == node.life and (times, ended[life, transfer]) != (1, 1):
                world.violations.add(
                    CHECK, f"{transfer} of {node.name} began {times} times and has "
                    f"{ended[life, transfer]} outcomes",
                )  # fmt: skip


def _pins(world: World) -> None:
    """A pin that held blocks ends once."""
    ended: Counter[tuple[str, str, str]] = Counter()
    for node, life, event in world.facts:
        if isinstance(event, PinEnded) and event.granted:
            ended[life, event.target, event.transfer] += 1
            if ended[life, event.target, event.transfer] > 1:
                world.violations.add(CHECK, f"the pin {event.transfer} ended twice at {node}")
