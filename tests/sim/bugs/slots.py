"""Bugs of those who lend and use decode slots."""

from __future__ import annotations

from typing import Any

from tests.sim.bugs.bug import Bug, Patch

from kvferry.daemon.slot_timers import SlotTimers

KILLED = {
    "ledger_loses": "0.0",
    "faults_per_s": "1.0",
    "busy_s": "30.0",
    "routers": "3",
    "fault_kinds": '["kill_router"]',
}
"""Routers die, and what they sent to prefill does not."""


def _own_deadline() -> tuple[Patch, ...]:
    """A silent holder's lease ends on our own deadline, which is shorter than TileRT's limit."""

    def due(self: Any, slot: Any) -> bool:
        return slot.phase != "free" and self.silent_s(slot) > 0.8

    return (Patch(SlotTimers, "_due", due),)


SLOT_BUGS = (Bug("slot-own-deadline", "slots", _own_deadline, "slots", KILLED),)
