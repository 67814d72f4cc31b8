"""Requests as a stretch of the ledger tells of them, put together ahead of their time.

What a request wanted is told by the offer that it leaves at its end, and what it decided was
decided before it is told. So a reader that is ahead of the fold collects both.
"""

from __future__ import annotations

import msgspec

from kvferry.core.envelope import Batch
from kvferry.core.events import (
    FACTS,
    Inventory,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.core.retention_actions import HANDOVER, RETAIN

LIVES_MAX = 100_000
"""Requests under way at a time that are remembered; the oldest are forgotten."""

Key = tuple[str, str, str]
"""Space, node and request."""


class Life(msgspec.Struct, kw_only=True, eq=False):
    """One request on one node, as far as the ledger tells."""

    key: Key
    asked: Requested
    chain: bytes = b""
    """Sampled short hashes of all that it left offered: of its prompt, and of its answer."""
    blocks: int = 0
    """Blocks that it left offered."""
    ended: RequestEnded | None = None
    moved: Transferred | None = None
    failed: bool = False
    """Its transfer came to nothing."""
    awaited: bool = False
    """Another engine was to read what it left."""
    retain_ms: int = 0
    """A client asked for it to be kept so long."""
    prompt: tuple[int, ...] = ()
    """Its prompt in units of simulated memory, as far as they can be named."""
    whole: tuple[int, ...] = ()
    """The same of all that it leaves."""
    scheduled: bool = False
    """It is in :attr:`Lives.due`."""

    @property
    def node(self) -> str:
        """Where it ran."""
        return self.key[1]

    @property
    def session(self) -> str:
        """As the router named it."""
        return self.asked.session or (self.ended.session if self.ended is not None else "")

    def prompt_tokens(self, block_size: int) -> int:
        """Of the prompt; in whole blocks while its end is not known."""
        known = self.ended.prompt_tokens if self.ended is not None else 0
        return known or self.asked.wanted * block_size


class Lives:
    """All requests between the reader and the fold."""

    def __init__(self) -> None:
        self._open: dict[Key, Life] = {}
        self._of_transfer: dict[str, Life] = {}
        self.due: dict[int, list[Life]] = {}
        """Those whose decision was made at a position that the fold has yet to reach."""

    def see(self, batch: Batch, folded: int) -> None:
        """The reader meets a batch; the fold has reached ``folded``."""
        if batch.lane != FACTS:
            return
        for entry in batch.entries:
            event = entry.event
            if isinstance(event, Requested):
                life = Life(key=(batch.space, batch.node, event.request), asked=event)
                self._begin(life)
                if event.position > folded:
                    life.scheduled = True
                    self.due.setdefault(event.position, []).append(life)
            elif isinstance(event, Retained):
                self._left(batch, event)
            elif isinstance(event, Inventory):
                for offer in event.offers:
                    self._left(batch, offer)
            elif isinstance(event, RequestEnded):
                found = self._open.get((batch.space, batch.node, event.request))
                if found is not None:
                    found.ended = event
            elif isinstance(event, Transferred):
                found = self._of_transfer.get(event.transfer)
                if found is not None:
                    found.moved = event
            elif isinstance(event, TransferFailed):
                found = self._of_transfer.get(event.transfer)
                if found is not None:
                    found.failed = True

    def of(self, space: str, node: str, request: str) -> Life | None:
        """A request that is not over yet for the fold."""
        return self._open.get((space, node, request))

    def over(self, life: Life) -> None:
        """The fold has passed its end."""
        if self._open.get(life.key) is life:
            self._drop(life)

    def _begin(self, life: Life) -> None:
        self._open[life.key] = life
        if life.asked.transfer:
            self._of_transfer[life.asked.transfer] = life
        if len(self._open) > LIVES_MAX:
            self._drop(next(iter(self._open.values())))

    def _drop(self, life: Life) -> None:
        del self._open[life.key]
        self._of_transfer.pop(life.asked.transfer, None)

    def _left(self, batch: Batch, offer: Retained) -> None:
        if not offer.request or offer.base:
            return
        life = self._open.get((batch.space, batch.node, offer.request))
        if life is None:
            return
        if offer.count > life.blocks:
            life.chain, life.blocks = offer.hashes, offer.count
        life.awaited = life.awaited or offer.why == HANDOVER
        if offer.why == RETAIN:
            life.retain_ms = max(life.retain_ms, offer.ttl_ms)
