"""Each lane of each record counts from 1 without a hole, and is handed on in its own order.

What an engine handed over is either stored or declared as a gap. A log may store a lane's messages
late or twice (producers resend), so that all other checks see the events in the order in which
they were written, and each of them once.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvferry.core.events import COORD, Gap
from kvferry.replay.audit.finding import Findings, Seen

LANES_MAX = 20_000
EARLY_MAX = 4_096
"""Events of a lane that are stored before an earlier one of it."""


class _Lane:
    def __init__(self, first: int) -> None:
        self.next = first
        self.early: dict[int, Seen] = {}


class Lanes:
    """Holes and repetitions of lanes."""

    def __init__(self, whole: bool) -> None:
        """``whole``: the range begins with the ledger, so that each record begins with 1."""
        self._whole = whole
        self._lanes: dict[tuple[str, ...], _Lane] = {}

    def take(self, seen: Seen, found: Findings) -> list[Seen]:
        """The events that are due now that this one is here, in their lane's order."""
        batch, event = seen.batch, seen.entry.event
        if isinstance(event, Gap):
            lost = f"{event.count} events of its {event.lane} lane lost: {event.why}"
            found.note("gap", seen, batch.node, f"{batch.node} declared {lost}")
        if batch.lane == COORD:
            return [seen]  # Ordered by the server's own sequences of the subject.
        lane = self._lane(seen)
        if seen.lane_seq < lane.next or seen.lane_seq in lane.early:
            found.note(
                "repeated",
                seen,
                seen.node,
                f"event {seen.lane_seq} of the {batch.lane} lane of {seen.node} is stored twice; "
                "readers take the first",
            )
            return []
        lane.early[seen.lane_seq] = seen
        due = list(_due(lane))
        if len(lane.early) > EARLY_MAX:
            due += self._missing(lane, found)
        return due

    def end(self, found: Findings) -> list[Seen]:
        """What still waits for an event that is not in the range."""
        due = []
        for lane in self._lanes.values():
            while lane.early:
                due += self._missing(lane, found)
        return due

    def _lane(self, seen: Seen) -> _Lane:
        key = (*seen.life, str(seen.batch.epoch), seen.batch.lane)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                del self._lanes[next(iter(self._lanes))]
            # In the middle of a ledger nobody knows where a record stood.
            lane = self._lanes[key] = _Lane(1 if self._whole else seen.lane_seq)
        return lane

    def _missing(self, lane: _Lane, found: Findings) -> list[Seen]:
        after = min(lane.early)
        seen = lane.early[after]
        found.broken(
            "conservation",
            seen,
            seen.node,
            f"events {lane.next} to {after - 1} of the {seen.batch.lane} lane of {seen.node} "
            f"(process {seen.batch.incarnation}, epoch {seen.batch.epoch}) are missing, and no "
            "gap declares them lost",
        )
        lane.next = after
        return list(_due(lane))


def _due(lane: _Lane) -> Iterator[Seen]:
    while (seen := lane.early.pop(lane.next, None)) is not None:
        lane.next += 1
        yield seen
