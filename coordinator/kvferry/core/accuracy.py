"""How far off predictions were: what plans said beside what came of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from kvferry.core.cost import rate_key
from kvferry.core.events import AnyEvent, Requested, RequestEnded, TransferFailed, Transferred
from kvferry.core.state import DONE, TransferState

MOVE, PREFILL = "move", "prefill"
SELDOM = 1e-3
"""Milliseconds below which nothing is compared."""
OPEN_MAX = 200_000
"""Predictions of each kind whose outcome is awaited."""

Key = TypeVar("Key")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction and what was measured, in milliseconds."""

    what: str
    """``move`` or ``prefill``."""
    key: str
    """``source>target/backend`` of a move, the node of a prefill."""
    predicted_ms: float
    measured_ms: float
    model: int = 0


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The error of the predictions under one key. Relative to what was predicted."""

    what: str
    key: str
    n: int
    bias: float
    """Median of measured over predicted, less 1: above 0 it usually takes longer."""
    p50: float
    """Half of the predictions were off by no more, either way."""
    p95: float


class Joiner:
    """Joins predictions with outcomes as events come; what never ends is forgotten, oldest first.

    For one space's facts, in the order of the ledger.
    """

    def __init__(self) -> None:
        self._asked: dict[str, Requested] = {}
        self._alone: dict[tuple[str, str], Requested] = {}

    def see(self, node: str, event: AnyEvent) -> Outcome | None:
        """The next event of ``node``; an outcome where it is what a prediction was about."""
        if isinstance(event, Requested):
            if event.transfer:
                remember(self._asked, event.transfer, event)
            elif event.prefill_ms > SELDOM and not event.local_tokens:
                remember(self._alone, (node, event.request), event)
        elif isinstance(event, Transferred):
            return self._moved(node, event)
        elif isinstance(event, TransferFailed):
            self._asked.pop(event.transfer, None)
        elif isinstance(event, RequestEnded):
            return self._computed(node, event)
        return None

    def _moved(self, node: str, event: Transferred) -> Outcome | None:
        plan = self._asked.pop(event.transfer, None)
        if plan is None or not _tells(plan, event.count):
            return None
        return Outcome(
            what=MOVE,
            key=rate_key(event.source, node, event.backend),
            predicted_ms=plan.predicted_ms,
            measured_ms=moved_ms(event),
            model=plan.model,
        )

    def _computed(self, node: str, event: RequestEnded) -> Outcome | None:
        miss = self._alone.pop((node, event.request), None)
        if miss is None or event.prefill_ms <= SELDOM or event.pulled_tokens:
            return None
        return Outcome(
            what=PREFILL,
            key=node,
            predicted_ms=miss.prefill_ms,
            measured_ms=event.prefill_ms,
            model=miss.model,
        )


def moved_ms(event: Transferred) -> float:
    """What the prediction of a move is about: pin, read and settle together."""
    return event.pin_ms + event.read_ms + event.settle_ms


def remember(where: dict[Key, Requested], key: Key, event: Requested) -> None:
    """Keep what awaits its outcome; of more than :data:`OPEN_MAX` the oldest is forgotten."""
    where[key] = event
    if len(where) > OPEN_MAX:
        del where[next(iter(where))]


def outcomes(events: Iterable[tuple[str, AnyEvent]]) -> list[Outcome]:
    """Join predictions with outcomes.

    Args:
        events: (node, event) pairs of one space's facts, in the order of the ledger.
    """
    joiner = Joiner()
    found = (joiner.see(node, event) for node, event in events)
    return [one for one in found if one is not None]


def of_transfers(transfers: Iterable[TransferState]) -> list[Outcome]:
    """The same of the transfers that a state remembers."""
    return [
        Outcome(
            what=MOVE,
            key=rate_key(one.source, one.target, one.backend),
            predicted_ms=one.predicted_ms,
            measured_ms=one.moved_ms,
        )
        for one in transfers
        if one.phase == DONE and _tells(one, one.count)
    ]


def _tells(asked: Requested | TransferState, count: int) -> bool:
    """Whether ``count`` moved blocks are what a prediction was about: a part tells nothing."""
    predicted = asked.predicted_ms > SELDOM
    return predicted and not asked.local_tokens and count >= asked.granted


def accuracy(found: Iterable[Outcome]) -> list[Accuracy]:
    """The error under each key, sorted by key."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in found:
        if one.predicted_ms > SELDOM and one.measured_ms > SELDOM:
            ratios[one.what, one.key].append(one.measured_ms / one.predicted_ms)
    return [_of(what, key, values) for (what, key), values in sorted(ratios.items())]


def _of(what: str, key: str, ratios: list[float]) -> Accuracy:
    off = sorted(abs(ratio - 1.0) for ratio in ratios)
    return Accuracy(
        what=what,
        key=key,
        n=len(ratios),
        bias=_quantile(sorted(ratios), 0.5) - 1.0,
        p50=_quantile(off, 0.5),
        p95=_quantile(off, 0.95),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
