"""Invariant 8: what goes in comes out: tokens of requests, pins and transfers, events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.sim.world.request import BLOCK_TOKENS

from kvferry.core.events import PinEnded, Requested, RequestEnded, Transferred

if TYPE_CHECKING:
    from tests.sim.world.world import World

CHECK = "conservation"


def check(world: World) -> None:
    """At the end."""
    _requests(world)
    _moved(world)


def _requests(world: World) -> None:
    """local + pulled + computed = prompt, and one end for each request."""
    ends: Counter[tuple[str, str]] = Counter()
    began: set[tuple[str, str]] = set()
    for node, life, event in world.facts:
        if isinstance(event, Requested):
            if (life, event.request) in began:
                world.violations.add(CHECK, f"{event.request} on {node} is requested twice")
            began.add((life, event.request))
        elif isinstance(event, RequestEnded):
            ends[life, event.request] += 1
            parts = event.local_tokens + event.pulled_tokens + event.computed_tokens
            if parts != event.prompt_tokens or event.computed_tokens < 0:
                world.violations.add(CHECK, f"tokens of {event.request} on {node}: {event}")
    present = {node.life for node in world.nodes.values()}
    for key, count in ends.items():
        if count > 1:
            world.violations.add(CHECK, f"{key} ended {count} times")
    for key in sorted(began):
        if key[0] in present and not ends[key]:
            world.violations.add(CHECK, f"{key} never ended")


def _moved(world: World) -> None:
    """What was transferred was requested from that source, within what was granted, and the
    source's pin agrees that it was intact."""
    asked = {
        (life, event.transfer): event
        for _, life, event in world.facts
        if isinstance(event, Requested) and event.transfer
    }
    pins = {
        (node, event.transfer): event.how
        for node, _, event in world.facts
        if isinstance(event, PinEnded) and event.granted
    }
    present = {node.life for node in world.nodes.values()}
    first = {node.name: node.life for node in reversed(world.past)}
    for node, life, event in world.facts:
        if not isinstance(event, Transferred):
            continue
        wanted = asked.get((life, event.transfer))
        if wanted is None:
            continue  # The check of endings says so.
        within = event.start + event.count <= min(wanted.wanted, wanted.granted)
        if event.source != wanted.source or not within or event.count <= 0:
            world.violations.add(CHECK, f"{node} got {event}, and asked {wanted}")
        if event.start * BLOCK_TOKENS < wanted.local_tokens:
            world.violations.add(CHECK, f"{node} pulled what it had: {event}, {wanted}")
        lived_on = first[event.source] in present
        how = pins.get((event.source, event.transfer), "" if lived_on else "intact")
        if how != "intact":
            world.violations.add(CHECK, f"{node} used {event.transfer}, whose pin ended {how!r}")
