"""A send to a decode node ends once, and is written only under the lease of its own request."""

from __future__ import annotations

from kvferry.core.events import COORD, SendBegan, SendEnded, SlotChanged
from kvferry.core.slots import GRANT
from kvferry.replay.audit.finding import End, Findings, Seen
from kvferry.replay.audit.recent import Recent

OPEN_MAX = 200_000
ENDED_MAX = 200_000
LEASES_MAX = 200_000


class Sends:
    """Sends, their outcomes, and the slot leases under which they were made."""

    def __init__(self, whole: bool) -> None:
        """``whole``: the range begins with the ledger's first message."""
        self._whole = whole
        self._open: dict[tuple[str, str], Seen] = {}
        self._over: Recent[tuple[str, str]] = Recent(ENDED_MAX)
        self._leases: dict[int, SlotChanged] = {}
        """Grants by their fence."""

    def see(self, seen: Seen, found: Findings) -> None:
        event = seen.entry.event
        if isinstance(event, SendBegan):
            self._began(seen, event, found)
        elif isinstance(event, SendEnded):
            self._ended(seen, event, found)
        elif isinstance(event, SlotChanged) and seen.batch.lane == COORD:
            self._leased(event)

    def end(self, end: End, found: Findings) -> None:
        """A node that lives has said how each of its sends ended."""
        for (_, send), began in self._open.items():
            waits_ms = end.stored_ms - began.stored_ms
            if began.life in end.living and waits_ms >= end.patience_ms:
                found.broken(
                    "everything_ends",
                    began,
                    send,
                    f"send {send} of {began.node} has no outcome {waits_ms / 1000:.0f} s after it "
                    "began, although the node lives",
                )

    def _leased(self, event: SlotChanged) -> None:
        if event.change == GRANT:
            if len(self._leases) >= LEASES_MAX:
                del self._leases[next(iter(self._leases))]
            self._leases[event.fence] = event

    def _began(self, seen: Seen, event: SendBegan, found: Findings) -> None:
        key = (seen.batch.space, event.send)
        if key in self._over or key in self._open:
            found.broken("ends_once", seen, event.send, f"send {event.send} began a second time")
            return
        if len(self._open) >= OPEN_MAX:
            del self._open[next(iter(self._open))]
        self._open[key] = seen
        self._check_lease(seen, event, found)

    def _check_lease(self, seen: Seen, event: SendBegan, found: Findings) -> None:
        """A grant is stored before its router hears of it, so before prefill is asked."""
        if not event.fence:
            return
        lease = self._leases.get(event.fence)
        if lease is None:
            if self._whole and len(self._leases) < LEASES_MAX:
                found.broken(
                    "slot_exclusive",
                    seen,
                    event.send,
                    f"{seen.told}; yet no lease of fence {event.fence} was granted",
                )
        elif (lease.node, lease.request) != (event.slot, event.external_id):
            found.broken(
                "slot_exclusive",
                seen,
                event.send,
                f"{seen.told}; yet fence {event.fence} is the lease of request {lease.request} "
                f"on {lease.node}",
            )

    def _ended(self, seen: Seen, event: SendEnded, found: Findings) -> None:
        key = (seen.batch.space, event.send)
        began = self._open.pop(key, None)
        if key in self._over:
            found.broken(
                "ends_once",
                seen,
                event.send,
                f"send {event.send} has a second outcome; the first counts: {seen.told}",
            )
            return
        self._over.add(key)
        if began is None:
            if self._whole:
                found.broken(
                    "conservation",
                    seen,
                    event.send,
                    f"send {event.send} has an outcome but never began",
                )
            return
        asked = began.entry.event
        assert isinstance(asked, SendBegan)
        if event.request != asked.request or (not event.reason and not event.bytes):
            found.broken(
                "conservation",
                seen,
                event.send,
                f"{seen.told}; yet it began for request {asked.request} with {asked.tokens} tokens",
            )
