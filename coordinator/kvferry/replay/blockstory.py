"""The story of one block: who made it, kept it, moved it and lost it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    Evicted,
    Inventory,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PinEnded,
    Produced,
    Requested,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.core.story import EVICTIONS
from kvferry.ids import SAMPLE_TOKENS, SHORT_BYTES, sample_stride
from kvferry.replay.stories import StoryItem
from kvferry.replay.words import counted, duration

NAMED = (
    f"the ledger names one block in every {SAMPLE_TOKENS} tokens and the last one of each run, so "
    "a block between two of these is not found"
)
_HASH = re.compile(r"(?:[0-9a-fA-F]{16}){1,4}")


def as_hash(asked: str) -> bytes | None:
    """A chain hash as people write it: 64 hex digits, or the first 16; None if it is neither."""
    if len(asked) in (2 * SHORT_BYTES, 64) and _HASH.fullmatch(asked):
        return bytes.fromhex(asked)
    return None


class BlockSearch:
    """The events of one block, learned in a first pass over both streams, selected in a second."""

    def __init__(self, block: bytes) -> None:
        self.block = block
        self.short = block[:SHORT_BYTES]
        self.index: int | None = None
        """Which block of its chain it is, from 0; None until it is known."""
        self.tokens = 0
        """Tokens in a block, where a node that has it said so; else 0."""
        self.requests: set[str] = set()
        self.transfers: set[str] = set()
        self.offers: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._nodes: set[str] = set()
        """Second pass: nodes that have had the block so far."""

    @property
    def found(self) -> bool:
        """After the first pass: does the ledger name the block?"""
        return self.index is not None or bool(self.transfers)

    def learn(self, batch: Batch, entry: Entry) -> None:
        """First pass: does this event name the block?"""
        event = entry.event
        match event:
            case NodeJoined():
                self._sizes[batch.node] = event.block_size
            case Retained():
                self._learn_run(batch, event)
            case Inventory():
                for one in event.offers:
                    self._learn_run(batch, one)
            case Produced():
                self._learn_run(batch, event)
            case Requested() if event.transfer and event.upto == self.short:
                self.transfers.add(event.transfer)
                self.index = event.granted - 1 if self.index is None else self.index

    def _learn_run(self, batch: Batch, run: Retained | Produced) -> None:
        at = self._place(batch, run)
        if at is None:
            return
        self.index = at
        self.tokens = self._sizes.get(batch.node, 0) or self.tokens
        if run.request:
            self.requests.add(run.request)
        if isinstance(run, Retained):
            self.offers.add(run.offer)

    def _place(self, batch: Batch, run: Retained | Produced) -> int | None:
        """Which block of its chain the run says that it is; None where it does not name it."""
        begin = run.start if isinstance(run, Produced) else run.base
        last = (begin if isinstance(run, Produced) else 0) + run.count - 1
        full = len(self.block) > SHORT_BYTES
        if (run.tail if full else run.tail[:SHORT_BYTES]) == self.block:
            return last
        size = self._sizes.get(batch.node, 0)
        stride = sample_stride(size) if size > 0 else 1
        for at in range(0, len(run.hashes), SHORT_BYTES):
            if run.hashes[at : at + SHORT_BYTES] == self.short:
                return (begin // stride + at // SHORT_BYTES + 1) * stride - 1
        return None

    def concerns(self, batch: Batch, entry: Entry) -> bool:
        """Second pass: is this event of the batch part of the block's story?"""
        event = entry.event
        at = self.index if self.index is not None else 0
        match event:
            case Produced() | Retained():
                has = self._has(event, at)
                if has:
                    self._nodes.add(batch.node)
                return has
            case Evicted():
                return event.offer in self.offers
            case Requested():
                takes = event.granted if event.transfer else event.wanted
                mine = event.request in self.requests and at < takes
                if mine and event.transfer:
                    self.transfers.add(event.transfer)
                return mine or event.transfer in self.transfers
            case Transferred() | TransferFailed() | PinEnded():
                return event.transfer in self.transfers
            case Inventory():
                return any(one.offer in self.offers for one in event.offers)
            case NodeLeft():
                return event.node in self._nodes
            case NodeClosed() | NodeJoined():
                return batch.node in self._nodes
        return False

    def _has(self, event: Produced | Retained, at: int) -> bool:
        if isinstance(event, Retained):
            return event.offer in self.offers
        return event.request in self.requests and event.start <= at < event.start + event.count


class _Holding:
    """Which offers hold the block at a point of its story."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.offers: dict[str, StoryItem] = {}
        self.ends: list[str] = []

    def fold(self, one: StoryItem) -> None:
        match one.body:
            case Retained() as kept if kept.count > self.index:
                self.offers.setdefault(kept.offer, one)
            case Evicted() as lost if lost.keep <= self.index and lost.offer in self.offers:
                self._end(lost.offer, one, EVICTIONS.get(lost.reason, lost.reason))
            case NodeLeft() as left:
                self._node(left.node, one, "the node was declared gone")
            case NodeClosed():
                self._node(one.node, one, "the node was stopped")
            case NodeJoined():
                self._node(one.node, one, "another process took the node's place")

    def _node(self, node: str, one: StoryItem, why: str) -> None:
        for offer in [name for name, kept in self.offers.items() if kept.node == node]:
            self._end(offer, one, why)

    def _end(self, offer: str, one: StoryItem, why: str) -> None:
        kept = self.offers.pop(offer)
        held = duration(one.stored_ms - kept.stored_ms)
        self.ends.append(f"{kept.node} kept it for {held} as {offer}, until {why}")


def conclude_block(search: BlockSearch, items: Sequence[StoryItem]) -> str:
    """Where a block came from, where it went, how it was lost, and who has it now.

    Args:
        search: which block, after both passes.
        items: its story, in order.
    """
    at = search.index if search.index is not None else 0
    place = f"block {at} of its chain"
    if search.tokens:
        place += f" (tokens {at * search.tokens:,} to {(at + 1) * search.tokens - 1:,})"
    holding = _Holding(at)
    moves: list[str] = []
    makers: dict[str, None] = {}
    for one in items:
        holding.fold(one)
        match one.body:
            case Transferred() as moved if moved.start <= at < moved.start + moved.count:
                moves.append(f"{moved.source} to {one.node} (transfer {moved.transfer})")
            case Produced() as made if made.via == "computed":
                makers.setdefault(one.node)
    parts = [place]
    if makers:
        parts.append(f"computed by {' and '.join(makers)}")
    if moves:
        parts.append(f"moved {counted(len(moves), 'time')}: {', '.join(moves)}")
    parts += holding.ends
    now = [f"{kept.node} ({offer})" for offer, kept in holding.offers.items()]
    parts.append(f"offered now by {', '.join(now)}" if now else "nobody offers it any more")
    return "; ".join(parts)
