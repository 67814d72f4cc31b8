"""A lease ends: by its time at the latest, while its node lives and its engine steps.

An idle engine frees nothing before its next step, so what counts is what it did after that time.
"""

from __future__ import annotations

from kvferry.core.events import Evicted, Inventory, Requested, RequestEnded, Retained
from kvferry.core.leases import HBM
from kvferry.replay.audit.finding import End, Findings, Seen

LEASED = (HBM,)
"""Tiers that hold memory of the engine for a time. The host tier's records end by eviction."""
OPEN_MAX = 200_000


class Leases:
    """Leases that were taken and neither renewed nor ended in time."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str, str], tuple[Seen, Retained]] = {}
        self._stepped_ms: dict[tuple[str, str, str], int] = {}
        """When an engine last began or ended a request, by process."""

    def see(self, seen: Seen, found: Findings) -> None:
        event = seen.entry.event
        if isinstance(event, Requested | RequestEnded):
            self._stepped_ms[seen.life] = seen.stored_ms
        if isinstance(event, Retained):
            self._kept(seen, event)
        elif isinstance(event, Evicted) and event.offer and event.keep == 0:
            self._open.pop((*seen.life, event.offer), None)
        elif isinstance(event, Inventory):
            self._told(seen, event)

    def _kept(self, seen: Seen, event: Retained) -> None:
        key = (*seen.life, event.offer)
        if event.tier in LEASED and event.ttl_ms:
            if key in self._open or len(self._open) < OPEN_MAX:
                self._open[key] = (seen, event)
        else:
            self._open.pop(key, None)

    def _told(self, seen: Seen, event: Inventory) -> None:
        """An inventory replaces all that was said before it."""
        if event.part == 0:
            for key in [key for key in self._open if key[:3] == seen.life]:
                del self._open[key]
        for offer in event.offers:
            self._kept(seen, offer)

    def end(self, end: End, found: Findings) -> None:
        for (*_, offer), (seen, event) in self._open.items():
            over_ms = self._stepped_ms.get(seen.life, 0) - seen.stored_ms - event.ttl_ms
            if over_ms >= end.patience_ms and seen.life in end.living:
                found.broken(
                    "everything_ends",
                    seen,
                    offer,
                    f"lease {offer} of {seen.node} was for {event.ttl_ms / 1000:.0f} s and has "
                    f"neither ended nor been renewed when the engine still served requests "
                    f"{over_ms / 1000:.0f} s after that",
                )
