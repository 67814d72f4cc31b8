"""Which coordinator replicas can be asked for a plan, and when not to ask at all."""

from __future__ import annotations

import msgspec

REPLICAS_MAX = 64
"""Replicas that are remembered; the longest silent one is forgotten first."""

NEW_SHARE = 0.2
"""Weight of a new latency in a replica's running mean."""

OPEN_FIRST = 8
"""A breaker opens for this part of its longest time at first."""


class _Replica(msgspec.Struct):
    heard_s: float
    latency_ms: float = 0.0


class Replicas:
    """Replicas as their announcements show them. All times are of one monotonic clock.

    Args:
        silent_s: a replica not heard for so long is not asked.
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._known: dict[str, _Replica] = {}
        self._newest_s = float("-inf")

    def heard(self, name: str, now_s: float) -> None:
        """A replica announced itself."""
        self._newest_s = now_s
        known = self._known.get(name)
        if known is None:
            self._known[name] = _Replica(now_s)
            if len(self._known) > REPLICAS_MAX:
                oldest = min(self._known, key=lambda key: self._known[key].heard_s)
                del self._known[oldest]
            return
        if now_s - known.heard_s > self._silent_s:
            # It was away, so what is known of its pace is about another life of it.
            known.latency_ms = 0.0
        known.heard_s = now_s

    def any_live(self, now_s: float) -> bool:
        """Whether some replica was heard of late. Safe on any thread."""
        return now_s - self._newest_s <= self._silent_s

    def live(self, now_s: float) -> list[str]:
        """Replicas heard of late, the quickest first."""
        names = [n for n, r in self._known.items() if now_s - r.heard_s <= self._silent_s]
        return sorted(names, key=lambda name: (self._known[name].latency_ms, name))

    def took(self, name: str, latency_ms: float) -> None:
        """A replica answered, failed or was given up after so long."""
        known = self._known.get(name)
        if known is not None:
            known.latency_ms += NEW_SHARE * (latency_ms - known.latency_ms)


class Breaker:
    """Stops asking after failures in a row, then lets one ask try again.

    Asks that were under way together fail together when anything between them and an answer
    stands still for a moment: that is one failure, not several. And the first opening is short,
    for refusing costs plans that could have been answered, while a failure costs one deadline.

    Args:
        failures: so many in a row, each asked after the last one had failed, open it.
        open_s: for so long at the most; the first time for an eighth of it, then twice as long
            as before. Then one ask goes through, and its outcome decides.
    """

    def __init__(self, failures: int, open_s: float) -> None:
        self._failures_max = failures
        self._open_max_s = open_s
        self._failures = 0
        self._failed_s = float("-inf")
        self._open_s = open_s / OPEN_FIRST
        self._open_until_s = float("-inf")
        self._trying = False

    def closed(self, now_s: float) -> bool:
        """Whether an ask may go through now. Safe on any thread."""
        return now_s >= self._open_until_s and not self._trying

    def enter(self, now_s: float) -> bool:
        """Like :meth:`closed`; the one ask after an opening takes the way for itself."""
        if not self.closed(now_s):
            return False
        self._trying = self._failures >= self._failures_max
        return True

    def succeeded(self) -> None:
        """An ask was answered."""
        self._failures = 0
        self._open_s = self._open_max_s / OPEN_FIRST
        self._trying = False
        self._open_until_s = float("-inf")

    def failed(self, asked_s: float, now_s: float) -> None:
        """An ask that was made at ``asked_s`` was not answered."""
        if asked_s < self._failed_s:
            return
        self._failures += 1
        self._failed_s = now_s
        self._trying = False
        if self._failures >= self._failures_max:
            self._open_until_s = now_s + self._open_s
            self._open_s = min(self._open_max_s, 2 * self._open_s)

    def abandoned(self) -> None:
        """An ask ended without telling anything about the replicas."""
        self._trying = False
