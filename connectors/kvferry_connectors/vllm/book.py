"""Turns what the engine thread handed over into events, on the node agent's thread.

Here is the accounting that the engine must not wait for: which blocks a step completed, which
offers shrink when blocks are reused, which offers a longer chain covers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from kvferry.core.events import BLOCKS, FACTS, Event, Produced, RequestEnded, Retained
from kvferry.ids import SHORT_BYTES, sample_stride, short_hashes
from kvferry_connectors.vllm.items import (
    Arrived,
    Cleared,
    Finished,
    HostEvicted,
    HostOffered,
    Leased,
    LeaseEnded,
    LeaseRenewed,
    Offered,
    Reused,
    Step,
)
from kvferry_connectors.vllm.offers import OfferBook
from kvferry_connectors.vllm.report import log_line
from kvferry_connectors.vllm.tracked import Tracked

Out: TypeAlias = tuple[str, Event, str]

log = logging.getLogger("kvferry.vllm")


class _Running:
    """Progress of one request."""

    __slots__ = ("begun_at", "computed", "first_token_at", "produced", "stale", "tracked")

    def __init__(self, tracked: Tracked) -> None:
        self.tracked = tracked
        self.computed = -1
        """Tokens with KV; -1 before the first step."""
        self.produced = 0
        self.begun_at = 0.0
        """When the first step was scheduled that computed some of its prompt."""
        self.first_token_at = 0.0
        self.stale = False
        """Preempted: what is computed again is known again only at the end."""


class Book:
    """The record keeper of one engine.

    ``delay`` is the number of steps that may be in flight when the next is scheduled: a step's
    KV is complete once so many later ones were scheduled.
    """

    def __init__(self, block_size: int, *, delay: int) -> None:
        self._block_size = block_size
        self._stride = sample_stride(block_size)
        self._delay = max(1, delay)
        self._running: dict[str, _Running] = {}
        self._steps: deque[Step] = deque()
        self._offers = OfferBook(self._stride)
        self._host = OfferBook(self._stride, "host")

    def translate(self, item: object) -> Iterable[Out]:
        """The events of one item, in order."""
        match item:
            case tuple():
                return self._step(item)
            case Arrived(tracked):
                self._running[tracked.id] = _Running(tracked)
                return ()
            case Finished():
                return self._finished(item)
            case Offered():
                return self._offers.offered(item)
            case Leased():
                return self._offers.leased(item)
            case LeaseRenewed():
                return self._offers.lease_renewed(item)
            case LeaseEnded(lease, reason):
                return self._offers.lease_ended(lease, reason)
            case Reused(hashes):
                return self._offers.reused(hashes)
            case HostOffered():
                return self._host.offered(item)
            case HostEvicted(hashes, reason):
                return self._host.reused(hashes, reason)
            case Cleared(reason):
                return self._offers.cleared(reason)
        raise TypeError(f"the engine handed over an unknown item: {type(item).__name__}")

    def inventory(self) -> list[Retained]:
        """What is offered and leased now, for a ledger that lost it as the outbox overflowed."""
        return [*self._offers.standing(), *self._host.standing()]

    def offered_chain(self, offer: str, rev: int) -> Sequence[bytes] | None:
        """Chain hashes of an offer from the engine's cache; None if it has another rev by now."""
        return self._offers.chain(offer, rev)

    def hosted_chain(self, offer: str, rev: int) -> Sequence[bytes] | None:
        """The same of a run in the host tier."""
        return self._host.chain(offer, rev)

    @property
    def stride(self) -> int:
        """Events have the hash of every so many-th block."""
        return self._stride

    def _step(self, step: Step) -> Iterator[Out]:
        now, _, preempted = step
        self._steps.append(step)
        for request in preempted or ():
            running = self._running.get(request)
            if running is not None:
                running.stale = True
        while len(self._steps) > self._delay:
            at, scheduled, _ = self._steps.popleft()
            for request, tokens in scheduled.items():
                running = self._running.get(request)
                if running is not None and not running.stale:
                    running.begun_at = running.begun_at or at
                    yield from self._progress(running, tokens, now)

    def _progress(self, running: _Running, tokens: int, now: float) -> Iterator[Out]:
        tracked = running.tracked
        if running.computed < 0:
            running.computed = tracked.local_tokens + tracked.pulled_tokens
            running.produced = tracked.local_tokens // self._block_size
            pulled = tracked.pulled_tokens // self._block_size
            if pulled:
                yield self._produced(tracked, running.produced, pulled, "pulled")
                running.produced += pulled
        running.computed += tokens
        if not running.first_token_at and running.computed >= tracked.prompt_tokens:
            running.first_token_at = now
        whole = min(running.computed // self._block_size, len(tracked.hashes))
        if whole > running.produced:
            yield self._produced(tracked, running.produced, whole - running.produced, "computed")
            running.produced = whole

    def _produced(self, tracked: Tracked, start: int, count: int, via: str) -> Out:
        hashes, end = tracked.hashes, start + count
        before = start - start % self._stride
        event = Produced(
            request=tracked.id,
            start=start,
            count=count,
            tail=bytes(hashes[end - 1]),
            parent=bytes(hashes[start - 1][:SHORT_BYTES]) if start else b"",
            hashes=short_hashes(hashes[before:end], self._stride),
            via=via,
        )
        return BLOCKS, event, tracked.id

    def _finished(self, item: Finished) -> Iterator[Out]:
        tracked = item.tracked
        running = self._running.pop(tracked.id, None)
        first = item.at
        if running is not None:
            first = running.first_token_at or item.at
            running.begun_at = running.begun_at or self._scheduled_at(tracked.id)
            if running.computed < 0 and item.blocks:
                # It ran for one step only, which no later step confirmed.
                yield from self._progress(running, 0, item.at)
            missing = min(item.blocks, len(tracked.hashes)) - running.produced
            if missing > 0:
                yield self._produced(tracked, running.produced, missing, "computed")
        ended = RequestEnded(
            request=tracked.id,
            external_id=tracked.params.id,
            session=tracked.session,
            prompt_tokens=tracked.prompt_tokens,
            local_tokens=tracked.local_tokens,
            pulled_tokens=tracked.pulled_tokens,
            computed_tokens=tracked.computed_tokens,
            output_tokens=item.output_tokens,
            ttft_ms=round((first - tracked.arrived) * 1000, 3) if item.output_tokens else 0.0,
            outcome=item.outcome,
            source=tracked.source if tracked.pulled_tokens else "",
            miss="" if tracked.pulled_tokens else tracked.miss,
            pull_ms=round(tracked.pull_ms, 3),
            prefill_ms=self._prefill_ms(running, first) if item.output_tokens else 0.0,
            total_ms=round((item.at - tracked.arrived) * 1000, 3),
            session_over=tracked.params.end,
        )
        log.info("%s", log_line(ended))
        yield FACTS, ended, tracked.id

    def _scheduled_at(self, request: str) -> float:
        """When the first of the steps in flight was scheduled that has the request; 0 for none."""
        return next((at for at, scheduled, _ in self._steps if request in scheduled), 0.0)

    def _prefill_ms(self, running: _Running | None, first_token_at: float) -> float:
        """From the first step of the prompt to its first token; 0 where computing was broken off
        or its beginning is not known."""
        if running is None or running.stale or not running.begun_at:
            return 0.0
        return round(max(0.0, first_token_at - running.begun_at) * 1000, 3)
