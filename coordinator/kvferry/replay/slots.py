"""Decode slots of a state, for people and as JSON."""

from __future__ import annotations

from typing import Any

from kvferry.core.slots_state import Slots

Document = dict[str, Any]


def summarize_slots(slots: Slots) -> list[Document]:
    """Each decode node, who holds its slot and since when, by name."""
    return [
        {
            "node": name,
            "http": slot.node.http,
            "control": slot.node.control,
            "profile": slot.node.profile,
            "idle_limit_ms": slot.node.idle_limit_ms,
            "phase": slot.phase,
            "drained": slot.drained,
            "fence": slot.fence,
            "holder": slot.holder,
            "request": slot.request,
            "session": slot.session,
            "granted_ms": slot.granted_ms,
            "since_ms": slot.since_ms,
            "why": slot.why,
            "last": slot.last,
        }
        for name, slot in sorted(slots.nodes.items())
    ]


def summarize_leases(slots: Slots) -> Document:
    """How many leases there were, how they ended, and how long they last."""
    return {
        "granted": slots.granted,
        "ended": dict(sorted(slots.ended.items())),
        "lasted_ms": slots.lasted_ms,
    }
