"""A transfer ends once, brings what was granted, and is used only if its source said ``intact``."""

from __future__ import annotations

import msgspec

from kvferry.core.events import PinEnded, Requested, TransferFailed, Transferred
from kvferry.replay.audit.finding import End, Findings, Seen
from kvferry.replay.audit.recent import Recent

OPEN_MAX = 200_000
ENDED_MAX = 200_000


class _Transfer(msgspec.Struct):
    """What is known of one transfer while its pin or its outcome is missing."""

    asked: Seen | None = None
    outcome: Seen | None = None
    pin: Seen | None = None


class Transfers:
    """Requests for blocks, their outcomes and the pins at their sources."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._open: dict[tuple[str, str], _Transfer] = {}
        self._over: Recent[tuple[str, str]] = Recent(ENDED_MAX)

    def see(self, seen: Seen, found: Findings) -> None:
        event = seen.entry.event
        if isinstance(event, Requested) and event.transfer:
            self._asked(seen, event, found)
        elif isinstance(event, Transferred | TransferFailed):
            self._outcome(seen, event, found)
        elif isinstance(event, PinEnded) and event.granted:
            self._pinned(seen, event, found)

    def _of(self, seen: Seen, transfer: str) -> _Transfer | None:
        """What is known of a transfer; None if both of its sides have ended already."""
        key = (seen.batch.space, transfer)
        if key in self._over:
            return None
        known = self._open.get(key)
        if known is None:
            if len(self._open) >= OPEN_MAX:
                del self._open[next(iter(self._open))]
            known = self._open[key] = _Transfer()
        return known

    def _asked(self, seen: Seen, event: Requested, found: Findings) -> None:
        known = self._of(seen, event.transfer)
        if known is None or known.asked is not None:
            found.broken(
                "ends_once",
                seen,
                event.transfer,
                f"transfer {event.transfer} was requested a second time by {seen.node}",
            )
            return
        known.asked = seen

    def _outcome(self, seen: Seen, event: Transferred | TransferFailed, found: Findings) -> None:
        known = self._of(seen, event.transfer)
        if known is None or known.outcome is not None:
            found.broken(
                "ends_once",
                seen,
                event.transfer,
                f"transfer {event.transfer} has a second outcome; the first counts: {seen.told}",
            )
            return
        known.outcome = seen
        if known.asked is None:
            if self._whole:
                found.broken(
                    "conservation",
                    seen,
                    event.transfer,
                    f"transfer {event.transfer} has an outcome but was never requested",
                )
        elif isinstance(event, Transferred):
            _within(seen, event, known.asked, found)
        self._settled(seen, event.transfer, known, found)

    def _pinned(self, seen: Seen, event: PinEnded, found: Findings) -> None:
        known = self._of(seen, event.transfer)
        if known is None or known.pin is not None:
            found.broken(
                "ends_once",
                seen,
                event.transfer,
                f"the pin of transfer {event.transfer} ended a second time at {seen.node}",
            )
            return
        known.pin = seen
        self._settled(seen, event.transfer, known, found)

    def _settled(self, seen: Seen, transfer: str, known: _Transfer, found: Findings) -> None:
        """Compare both sides once they are known."""
        if known.outcome is None or known.pin is None:
            return
        pin, outcome = known.pin.entry.event, known.outcome.entry.event
        assert isinstance(pin, PinEnded)
        if isinstance(outcome, Transferred) and pin.how != "intact":
            found.broken(
                "source_decides",
                seen,
                transfer,
                f"{known.outcome.node} used the blocks of transfer {transfer}, but its source "
                f"{known.pin.node} ended the pin as {pin.how}: the answer may come from wrong KV",
            )
        self._open.pop((seen.batch.space, transfer), None)
        self._over.add((seen.batch.space, transfer))

    def end(self, end: End, found: Findings) -> None:
        lives = {(space, incarnation) for space, _, incarnation in end.living}
        for (_, transfer), known in self._open.items():
            if known.outcome is None:
                _unended(transfer, known, end, found)
            elif known.pin is None:
                _unpinned(transfer, known, end, lives, found)


def _within(seen: Seen, event: Transferred, asked_at: Seen, found: Findings) -> None:
    """What arrived was asked for, from there, and granted."""
    asked = asked_at.entry.event
    assert isinstance(asked, Requested)
    wrong = []
    if (event.source, event.request) != (asked.source, asked.request):
        wrong.append(f"{asked.source} was asked for request {asked.request}")
    if event.count <= 0 or event.start + event.count > min(asked.wanted, asked.granted):
        wrong.append(f"{asked.granted} blocks of {asked.wanted} wanted ones were granted")
    if wrong:
        found.broken(
            "conservation", seen, event.transfer, f"{seen.told}; yet {' and '.join(wrong)}"
        )


def _unended(transfer: str, known: _Transfer, end: End, found: Findings) -> None:
    asked = known.asked
    if asked is None or asked.life not in end.living:
        return
    waits_ms = end.stored_ms - asked.stored_ms
    if waits_ms >= end.patience_ms:
        found.broken(
            "everything_ends",
            asked,
            transfer,
            f"transfer {transfer} to {asked.node} has no outcome {waits_ms / 1000:.0f} s after it "
            "was requested, although the node lives",
        )


def _unpinned(
    transfer: str, known: _Transfer, end: End, lives: set[tuple[str, str]], found: Findings
) -> None:
    outcome, asked = known.outcome, known.asked
    assert outcome is not None
    event = outcome.entry.event
    held = isinstance(event, Transferred) or (
        isinstance(event, TransferFailed) and event.stage != "pin"
    )
    if asked is None or not held or end.stored_ms - outcome.stored_ms < end.patience_ms:
        return
    wanted = asked.entry.event
    assert isinstance(wanted, Requested)
    if wanted.source == outcome.node:
        return  # From its own host tier: no pin.
    if (outcome.batch.space, wanted.source_incarnation) in lives:
        found.broken(
            "conservation",
            outcome,
            transfer,
            f"the source {wanted.source} of transfer {transfer} lives and has not said how the "
            "pin ended",
        )
