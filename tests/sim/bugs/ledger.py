"""Bugs of the ledger's writers and readers, of leadership and of snapshots."""

from __future__ import annotations

from typing import Any

from tests.sim.bugs.bug import Bug, Patch

from kvferry.core import lanes
from kvferry.daemon import projector
from kvferry.daemon.decision_lane import DecisionLane
from kvferry.daemon.liveness import Liveness
from kvferry.node.agent.lanes import LaneWriter
from kvferry.node.agent.lanes_facts import FactsLane
from kvferry.node.agent.mirror import Mirror
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.vllm.looking import Looker

WHOLE = {"stream_bytes": "1073741824", "busy_s": "5.0"}
LOSSY = {**WHOLE, "ledger_loses": "0.3", "think_s": "0.02", "clients": "5"}
BUSY = {
    **LOSSY,
    "nodes": "3",
    "blocks": "24",
    "fault_kinds": '["reset_cache"]',
    "faults_per_s": "3.0",
}
"""Offers come and go all the time."""
CUT_OFF = {**WHOLE, "coordinators": "2", "fault_kinds": '["part_ledger"]', "faults_per_s": "3.0"}
"""Nodes lose the ledger for longer than a coordinator waits for them."""
FULL = {**CUT_OFF, "outbox_facts": "40", "clients": "5", "think_s": "0.02"}
"""Moreover their outboxes are soon full."""
RIVALS = {
    **WHOLE,
    "busy_s": "8.0",
    "coordinators": "2",
    "checkpoint_s": "1.0",
    "ledger_loses": "0.0",
    "fault_kinds": '["freeze_coordinator"]',
    "faults_per_s": "2.0",
}
LEADER_CUT_OFF = {**RIVALS, "fault_kinds": '["part_coordinator"]'}
"""A replica that hears nothing for a while, and what it sends arrives afterwards."""
RESTARTS = {
    **WHOLE,
    "coordinators": "2",
    "checkpoint_s": "1.5",
    "fault_kinds": '["kill_coordinator", "kill"]',
    "faults_per_s": "3.0",
}


def _reorder_buffer_missing() -> tuple[Patch, ...]:
    """What comes early is taken at once, and what it overtook is late and counts as known."""

    def out_of_order(state: Any, lane: Any, batch: Any, position: Any) -> list[Any]:
        if batch.seq > lane.last + 1:
            lane.last = batch.seq + len(batch.entries) - 1
            return [(batch.seq, batch.entries, position)]
        return shipped(state, lane, batch, position)

    shipped = lanes._out_of_order
    return (Patch(lanes, "_out_of_order", out_of_order),)


def _gap_forgotten() -> tuple[Patch, ...]:
    """Facts that found no room are passed over in silence."""
    return (Patch(FactsLane, "_cross", lambda self, hole: None),)


def _epoch_ignored() -> tuple[Patch, ...]:
    """A node that is asked to begin a new epoch goes on in the old one."""
    return (Patch(FactsLane, "resync", lambda self, why: True),)


def _inventory_missing() -> tuple[Patch, ...]:
    return (Patch(Mirror, "parts", lambda self: []),)


def _resync_never_asked() -> tuple[Patch, ...]:
    async def perform(self: Any, effect: Any) -> None:
        if effect.control.verb != "resync":
            await shipped(self, effect)

    shipped = Liveness.perform
    return (Patch(Liveness, "perform", perform),)


def _deposed_leader_accepted() -> tuple[Patch, ...]:
    """Decisions no longer name their predecessor."""

    async def append(self: Any, *given: Any, **more: Any) -> Any:
        fenced = self._log
        self._log = _Unfenced(fenced)
        try:
            return await shipped(self, *given, **more)
        finally:
            self._log = fenced

    shipped = DecisionLane.append
    return (Patch(DecisionLane, "append", append),)


class _Unfenced:
    """A log that is not told what the last message is."""

    def __init__(self, log: Any) -> None:
        self._log = log

    async def append(self, subject: str, data: bytes, **given: Any) -> Any:
        return await self._log.append(subject, data, message_id=given["message_id"])


def _stale_checkpoint_accepted() -> tuple[Patch, ...]:
    """A snapshot is taken for one of the stream's end, whatever its position."""

    async def load_newest(log: Any, objects: Any, bounds: Any, *rest: Any) -> Any:
        found = await shipped(log, objects, bounds, *rest)
        if found is not None:
            found.state.position = max(found.state.position, bounds.last - 1)
        return found

    shipped = projector.load_newest
    return (
        Patch(projector, "load_newest", load_newest),
        Patch(projector.Projector, "_check_same", lambda self, stored: None),
    )


def _outbox_reservation_missing() -> tuple[Patch, ...]:
    """Transfers start whether or not there is room for their outcome."""
    return (
        Patch(Outbox, "reserve", lambda self: True),
        Patch(Outbox, "admit", lambda self: True),
    )


def _slot_never_returned() -> tuple[Patch, ...]:
    return (Patch(Looker, "unreserve", lambda self, pull: None),)


def _resent_as_another() -> tuple[Patch, ...]:
    """After a failure the lane goes on as if what failed had been another message."""

    def attempted(self: Any, error: Any) -> None:
        if error is not None:
            self._writer._next_seq += 1
        shipped(self, error)

    shipped = FactsLane._attempted
    return (Patch(FactsLane, "_attempted", attempted),)


def _forgotten_once_sent() -> tuple[Patch, ...]:
    """The lane forgets a window as soon as it is sent."""

    async def flush(self: Any) -> None:
        window = list(self._sealed)
        self._sealed.clear()
        self._on_stored(sum(sealed.handed for sealed in window))
        for sealed in window:
            try:
                await self._log.append(sealed.subject, sealed.data, message_id=sealed.message_id)
            except Exception as error:
                self._on_trouble(error)

    return (Patch(LaneWriter, "flush", flush),)


def _index_not_followed() -> tuple[Patch, ...]:
    index = projector.ResidencyIndex
    return (Patch(index, "follow", lambda self, state, applied: None),)


LEDGER_BUGS = (
    Bug("reorder-buffer-missing", "ledger", _reorder_buffer_missing, "ledger", BUSY, seeds=20),
    Bug("gap-forgotten", "conservation", _gap_forgotten, "ledger", FULL),
    Bug("epoch-ignored", "ledger", _epoch_ignored, "ledger", CUT_OFF),
    Bug("inventory-missing", "ledger", _inventory_missing, "ledger", FULL),
    Bug("resync-never-asked", "ledger", _resync_never_asked, "ledger", CUT_OFF),
    Bug(
        "deposed-leader-accepted",
        "leadership",
        _deposed_leader_accepted,
        "ledger",
        RIVALS,
        seeds=20,
    ),
    Bug(
        "cut-off-leader-accepted",
        "leadership",
        _deposed_leader_accepted,
        "ledger",
        LEADER_CUT_OFF,
        seeds=20,
    ),
    Bug("stale-checkpoint-accepted", "fold", _stale_checkpoint_accepted, "ledger", RESTARTS),
    Bug("outbox-reservation-missing", "endings", _outbox_reservation_missing, "ledger", FULL),
    Bug("slot-never-returned", "endings", _slot_never_returned),
    Bug("resent-under-another-number", "conservation", _resent_as_another, "ledger", LOSSY),
    Bug("stored-before-acknowledged", "conservation", _forgotten_once_sent, "ledger", LOSSY),
    Bug("index-not-followed", "fold", _index_not_followed, "ledger"),
)
