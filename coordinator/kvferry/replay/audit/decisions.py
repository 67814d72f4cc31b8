"""Which decisions hindsight calls wrong, and what they cost.

A pull was wrong where it took longer than computing the same tokens was said to take, or where it
failed; computing was wrong where the request found pulling too dear, and computing then took longer
than the pull was said to take. The way not gone can only be judged by its prediction.
"""

from __future__ import annotations

import msgspec

from kvferry.core.accuracy import SELDOM, moved_ms, remember
from kvferry.core.events import AnyEvent, Requested, RequestEnded, TransferFailed, Transferred

PULLED, FAILED, COMPUTED = "pulled", "pull_failed", "computed"
NOT_DECIDED = ("aborted", "unused")
"""Ends of a transfer that say nothing of the decision to begin it: nobody wanted it any more."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of one kind that could be judged."""

    kind: str
    """``pulled``, ``pull_failed`` or ``computed`` (pulling was thought too dear)."""
    judged: int
    wrong: int
    cost_ms: float
    """By how much the wrong ones were slower than the other way was said to be; of failed pulls,
    the time until they failed."""

    def plus(self, other: Decided | None) -> Decided:
        """Both together."""
        if other is None:
            return self
        return Decided(
            kind=self.kind,
            judged=self.judged + other.judged,
            wrong=self.wrong + other.wrong,
            cost_ms=self.cost_ms + other.cost_ms,
        )


class _Sum(msgspec.Struct):
    judged: int = 0
    wrong: int = 0
    cost_ms: float = 0.0

    def add(self, took_ms: float, other_ms: float) -> None:
        self.judged += 1
        if took_ms > other_ms:
            self.wrong += 1
            self.cost_ms += took_ms - other_ms


class Decisions:
    """Of one space."""

    def __init__(self) -> None:
        self._pulls: dict[str, Requested] = {}
        self._dear: dict[tuple[str, str], Requested] = {}
        self._sums = {kind: _Sum() for kind in (PULLED, FAILED, COMPUTED)}

    def see(self, node: str, event: AnyEvent) -> None:
        """The next event of ``node``."""
        if isinstance(event, Requested):
            if event.transfer:
                remember(self._pulls, event.transfer, event)
            elif _dear(event):
                remember(self._dear, (node, event.request), event)
        elif isinstance(event, Transferred):
            asked = self._pulls.pop(event.transfer, None)
            if asked is not None and asked.recompute_ms > SELDOM:
                self._sums[PULLED].add(moved_ms(event), asked.recompute_ms)
        elif isinstance(event, TransferFailed):
            asked = self._pulls.pop(event.transfer, None)
            if asked is not None and event.reason not in NOT_DECIDED:
                self._sums[FAILED].add(event.total_ms, 0.0)
        elif isinstance(event, RequestEnded):
            asked = self._dear.pop((node, event.request), None)
            if asked is not None and event.prefill_ms > SELDOM:
                # What was found too dear is a part of the prompt: the same part of what it took.
                took_ms = asked.recompute_ms * event.prefill_ms / asked.prefill_ms
                self._sums[COMPUTED].add(took_ms, asked.predicted_ms)

    def decided(self) -> list[Decided]:
        """What could be judged so far."""
        return [
            Decided(kind=kind, judged=one.judged, wrong=one.wrong, cost_ms=one.cost_ms)
            for kind, one in self._sums.items()
            if one.judged
        ]


def _dear(event: Requested) -> bool:
    known = min(event.predicted_ms, event.recompute_ms, event.prefill_ms) > SELDOM
    return event.miss == "too_dear" and known and not event.local_tokens
