"""TileRT decode nodes of a status document: who has their slots."""

from __future__ import annotations

from typing import Any

from kvferry.cli import render
from kvferry.cli.times import duration, wall_ms
from kvferry.core.slots import FREE, UNSURE

Document = dict[str, Any]


def print_slots(routers: Document, coordinator: Document | None) -> None:
    """Nothing where no router has named a decode node."""
    slots = routers["slots"]
    if not slots:
        return
    said = coordinator["slots"]["said"] if coordinator is not None else {}
    render.heading("TileRT decode nodes")
    rows = []
    for slot in slots:
        node = slot["node"]
        asked = f"; nothing heard, node says {said[node]}" if node in said else ""
        drained = ", drained" if slot["drained"] else ""
        rows.append(
            (
                node,
                slot["http"],
                f"{slot['phase']}{drained}",
                standing(slot) + asked,
                slot["fence"] or "",
            )
        )
    render.table(("node", "decode server", "slot", "who has it", ">fence"), rows)
    leases = routers["leases"]
    if leases["granted"]:
        ends = ", ".join(f"{count} {how}" for how, count in leases["ended"].items())
        lasts = f", lasting {duration(leases['lasted_ms'])}" if leases["lasted_ms"] else ""
        render.line(f"{render.number(leases['granted'])} leases: {ends or 'none ended'}{lasts}")


def standing(slot: Document) -> str:
    """Who has a slot and since when, in words."""
    if slot["phase"] == FREE:
        return f"nobody; the last lease: {slot['last']}" if slot["last"] else "nobody yet"
    since = duration(max(0, wall_ms() - slot["since_ms"]))
    whose = f"request {slot['request']} of router {slot['holder']}" if slot["holder"] else ""
    if slot["phase"] == UNSURE:
        why = f" ({slot['why']})" if slot["why"] else ""
        return f"to be seen idle, since {since}{f', after {whose}' if whose else ''}{why}"
    return f"{whose}, since {since}"
