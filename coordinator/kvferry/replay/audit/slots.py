"""A decode slot has one lease at a time, fences only grow, and a lease ends with its request."""

from __future__ import annotations

import msgspec

from kvferry.core.events import COORD, LeaderElected, SlotChanged, TurnEnded
from kvferry.core.slots import ABANDONED, CONFIRMED, ENDS, GRANT, IDLE
from kvferry.replay.audit.finding import End, Findings, Seen


class Slots:
    """Leases of TileRT decode nodes."""

    def __init__(self, whole: bool) -> None:
        """``whole``: the range begins with the ledger's first message."""
        self._whole = whole
        self._terms: dict[str, int] = {}
        self._fences: dict[str, int] = {}
        self._open: dict[tuple[str, str], tuple[Seen, SlotChanged]] = {}
        self._known: set[tuple[str, str]] = set()
        """Nodes of which a lease began or ended within the range."""
        self._over: dict[int, Seen] = {}
        """Fences of open leases whose request was answered."""

    def see(self, seen: Seen, found: Findings) -> None:
        event, space = seen.entry.event, seen.batch.space
        if isinstance(event, TurnEnded):
            for _, lease in self._open.values():
                ours = lease.holder.startswith(f"{seen.node}.")
                if ours and lease.request == event.request:
                    self._over[lease.fence] = seen
        elif seen.batch.lane != COORD:
            return
        elif isinstance(event, LeaderElected):
            self._terms[space] = max(event.term, self._terms.get(space, 0))
        elif isinstance(event, SlotChanged) and event.term >= self._terms.get(space, 0):
            if event.change == GRANT:
                self._granted(seen, event, found)
            elif event.change in (CONFIRMED, ABANDONED, *ENDS):
                self._changed(seen, event, found)

    def _granted(self, seen: Seen, event: SlotChanged, found: Findings) -> None:
        space = seen.batch.space
        key = (space, event.node)
        before = self._open.get(key)
        if before is not None:
            _, lease = before
            found.broken(
                "slot_exclusive",
                seen,
                event.request,
                f"decode node {event.node} was lent for request {event.request} (fence "
                f"{event.fence}) while request {lease.request} (fence {lease.fence}) had it",
            )
        highest = self._fences.get(space, 0)
        if event.fence <= highest:
            found.broken(
                "slot_fence",
                seen,
                event.request,
                f"decode node {event.node} was lent for request {event.request} with fence "
                f"{event.fence}, but {highest} was given before",
            )
        self._fences[space] = max(highest, event.fence)
        self._open[key] = (seen, event)
        self._known.add(key)

    def _changed(self, seen: Seen, event: SlotChanged, found: Findings) -> None:
        key = (seen.batch.space, event.node)
        before = self._open.get(key)
        # What was lent before the range, or was to be seen idle without a lease, is not known here.
        known = self._whole or key in self._known
        fence = before[1].fence if before is not None else 0
        if known and event.fence != fence and not (before is None and event.change == IDLE):
            found.broken(
                "slot_fence",
                seen,
                event.request,
                f"{event.change} of decode node {event.node} names fence {event.fence}, but "
                + (f"its lease has fence {fence}" if fence else "nobody has it"),
            )
            return
        if event.change == ABANDONED:
            # It ends when the node was seen idle, which may take as long as the node likes.
            self._open[key] = (seen, msgspec.structs.replace(event, holder=""))
            self._over.pop(event.fence, None)
        elif event.change in ENDS:
            self._known.add(key)
            self._open.pop(key, None)
            self._over.pop(event.fence, None)

    def end(self, end: End, found: Findings) -> None:
        """A router that answered its client has said how the lease ended, or that it lost sight."""
        for seen, lease in self._open.values():
            over = self._over.get(lease.fence)
            waits_ms = end.stored_ms - over.stored_ms if over is not None else 0
            if over is not None and waits_ms >= end.patience_ms:
                found.broken(
                    "everything_ends",
                    seen,
                    lease.request,
                    f"request {lease.request} was answered {waits_ms / 1000:.0f} s before the end "
                    f"of the range and still has decode node {lease.node} (fence {lease.fence})",
                )
