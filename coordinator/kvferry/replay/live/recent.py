"""What happened lately: counters by the second of the server's store time, for a few minutes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvferry.core.applied import Applied
from kvferry.core.cost import rate_key
from kvferry.core.events import Requested, RequestEnded, TransferFailed, Transferred
from kvferry.core.totals import bump

SPANS_S = (10, 60, 300)
"""The stretches of time that a frame sums up."""
KEPT_S = max(SPANS_S)


class Counts(msgspec.Struct):
    """What a second, or a stretch of them, adds up to."""

    requests: int = 0
    prompt_tokens: int = 0
    local_tokens: int = 0
    pulled_tokens: int = 0
    computed_tokens: int = 0
    prompt_sent: int = 0
    """Prompt tokens whose KV was sent to TileRT nodes: no part of the four above."""
    failed: int = 0
    """Transfers that ended without use."""
    misses: dict[str, int] = {}
    """Requests without a transfer by cause; ``diverged@N`` counts as ``diverged``."""
    transfers: dict[str, int] = {}
    """Transfers that arrived, by link (``source>target/backend``)."""
    bytes: dict[str, int] = {}
    """What they carried, by link."""

    def take(self, applied: Applied) -> None:
        """Count one applied event; most kinds count nothing."""
        event = applied.entry.event
        if isinstance(event, RequestEnded):
            self.requests += 1
            if event.prompt_sent:
                self.prompt_sent += max(0, event.prompt_tokens)
                return
            self.prompt_tokens += max(0, event.prompt_tokens)
            self.local_tokens += max(0, event.local_tokens)
            self.pulled_tokens += max(0, event.pulled_tokens)
            self.computed_tokens += max(0, event.computed_tokens)
        elif isinstance(event, Requested):
            if event.miss and not event.transfer:
                bump(self.misses, event.miss.partition("@")[0])
        elif isinstance(event, Transferred):
            link = rate_key(event.source, applied.node, event.backend)
            bump(self.transfers, link)
            bump(self.bytes, link, event.bytes)
        elif isinstance(event, TransferFailed):
            self.failed += 1

    def add(self, other: Counts) -> None:
        """Sum up two."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.local_tokens += other.local_tokens
        self.pulled_tokens += other.pulled_tokens
        self.computed_tokens += other.computed_tokens
        self.prompt_sent += other.prompt_sent
        self.failed += other.failed
        for mine, theirs in (
            (self.misses, other.misses),
            (self.transfers, other.transfers),
            (self.bytes, other.bytes),
        ):
            for key, count in theirs.items():
                bump(mine, key, count)


class Recent:
    """The last :data:`KEPT_S` seconds of each space. Bounded, however busy the ledger is."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, Counts]] = {}

    def take(self, applied: Iterable[Applied]) -> None:
        """Count what was applied. A batch that waited for another may be older than the newest."""
        for one in applied:
            seconds = self._seconds.setdefault(one.space, {})
            at = one.position.stored_ms // 1_000
            counts = seconds.get(at)
            if counts is None:
                self._drop_old(seconds, at)
                counts = seconds[at] = Counts()
            counts.take(one)

    def over(self, space: str, span_s: int, now_ms: int) -> Counts:
        """The sum of the last ``span_s`` seconds before ``now_ms`` (server time)."""
        after = now_ms // 1_000 - span_s
        found = Counts()
        for at, counts in self._seconds.get(space, {}).items():
            if at > after:
                found.add(counts)
        return found

    @staticmethod
    def _drop_old(seconds: dict[int, Counts], now_s: int) -> None:
        for at in [at for at in seconds if at <= now_s - KEPT_S]:
            del seconds[at]
