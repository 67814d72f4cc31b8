"""What became of the KV that a request wanted: the earlier offer, and how and when it ended."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    Evicted,
    Inventory,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    RequestEnded,
    Retained,
)
from kvferry.ids import sample_stride
from kvferry.ports.log import Stored
from kvferry.replay.stories import StoryItem, item
from kvferry.replay.wanted import Wanted, split

OFFERS_MAX = 20_000
"""Offers that are remembered while looking for an earlier one; the oldest go first."""
LATE_MS = 10_000
"""An end that the ledger learns of so much later may still be why the blocks were not there."""


class Kept(msgspec.Struct, kw_only=True):
    """An offer or lease that may have been what a request wanted."""

    offer: str
    node: str
    space: str
    request: str
    session: str
    count: int
    """Blocks at its longest."""
    now: int
    depths: dict[bytes, int]
    """Hashes of wanted chains that it holds: how many blocks of the chain each commits to."""
    begun: StoryItem
    ended: StoryItem | None = None
    """What ended it, or last shortened it."""
    reason: str = ""

    def depth(self, wanted: Wanted) -> int:
        """Blocks of the wanted chain that it held; its whole length where no hash tells."""
        if not wanted.hashes:
            return self.count
        return max((self.depths[one] for one in wanted.hashes & self.depths.keys()), default=0)


class EarlierOffers:
    """Fed the facts in order, it finds for each wanted run the offer that came nearest."""

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self._waiting = sorted(wanted, key=lambda one: one.seq)
        self._hashes = frozenset().union(*(one.hashes for one in self._waiting))
        self._sessions = {one.session for one in self._waiting if one.session}
        self._until_ms = max((one.stored_ms for one in self._waiting), default=0) + LATE_MS
        self._offers: dict[str, Kept] = {}
        self._strides: dict[str, int] = {}
        self._lives: dict[str, str] = {}
        self._listed: dict[str, set[str]] = {}
        self._answered: set[str] = set()
        """Sessions of which a request has ended."""
        self.chosen: list[tuple[Wanted, Kept | None]] = []

    def done(self, stored: Stored) -> bool:
        """Whether nothing from this message on can matter."""
        return not self._waiting and stored.stored_ms > self._until_ms

    def feed(self, stream: str, stored: Stored, batch: Batch) -> None:
        """One batch of facts."""
        while self._waiting and self._waiting[0].seq <= stored.seq:
            wanted = self._waiting.pop(0)
            self.chosen.append((wanted, self._choose(wanted)))
        for entry in batch.entries:
            self._note(stream, stored, batch, entry)

    def finish(self) -> list[tuple[Wanted, Kept | None]]:
        """What was found, in the order in which it was wanted."""
        self.chosen += [(wanted, self._choose(wanted)) for wanted in self._waiting]
        self._waiting = []
        return self.chosen

    def _choose(self, wanted: Wanted) -> Kept | None:
        wanted.first_turn = wanted.session not in self._answered

        def worth(kept: Kept) -> tuple[int, bool, bool, int]:
            depth = kept.depth(wanted)
            # What the node itself still has, it need not get from others.
            return depth, kept.node != wanted.node, kept.now >= depth, kept.begun.seq

        near = [
            kept
            for kept in self._offers.values()
            if kept.space == wanted.space
            and kept.request != wanted.request
            and (kept.depths.keys() & wanted.hashes or _of_session(kept, wanted))
        ]
        return max(near, key=worth, default=None)

    def _note(self, stream: str, stored: Stored, batch: Batch, entry: Entry) -> None:
        event = entry.event
        match event:
            case RequestEnded() if event.session in self._sessions:
                self._answered.add(event.session)
            case Retained():
                self._retained(batch, event, item(stream, stored, batch, entry))
            case Evicted():
                self._evicted(event, batch, stored, stream, entry)
            case NodeJoined():
                if event.block_size > 0:
                    self._strides[batch.node] = sample_stride(event.block_size)
                if self._lives.get(batch.node, event.incarnation) != event.incarnation:
                    self._gone(batch.node, "restarted", item(stream, stored, batch, entry))
                self._lives[batch.node] = event.incarnation
            case NodeLeft():
                self._gone(event.node, "node_left", item(stream, stored, batch, entry))
            case NodeClosed():
                self._gone(batch.node, "node_closed", item(stream, stored, batch, entry))
            case Inventory():
                self._inventory(batch, event, item(stream, stored, batch, entry))

    def _retained(self, batch: Batch, event: Retained, told: StoryItem) -> None:
        stride = self._strides.get(batch.node, 1)
        depths = {
            one: min(event.count, (event.base // stride + at + 1) * stride)
            for at, one in enumerate(split(event.hashes))
            if one in self._hashes
        }
        if not depths and event.session not in self._sessions:
            return
        known = self._offers.get(event.offer)
        if known is not None and known.now > 0:
            known.count, known.now = max(known.count, event.count), event.count
            known.depths.update(depths)
            known.ended, known.reason = None, ""
            return
        while len(self._offers) >= OFFERS_MAX:
            del self._offers[next(iter(self._offers))]
        self._offers[event.offer] = Kept(
            offer=event.offer,
            node=batch.node,
            space=batch.space,
            request=event.request,
            session=event.session,
            count=event.count,
            now=event.count,
            depths=depths,
            begun=told,
        )

    def _evicted(
        self, event: Evicted, batch: Batch, stored: Stored, stream: str, entry: Entry
    ) -> None:
        kept = self._offers.get(event.offer)
        if kept is None or kept.node != batch.node or event.keep >= kept.now:
            return
        heir = self._offers.get(event.superseded_by)
        if heir is not None:
            # A longer run of the same chain on the same node: nothing is lost.
            heir.depths.update(kept.depths)
            del self._offers[event.offer]
            return
        kept.now = max(0, event.keep)
        kept.ended = item(stream, stored, batch, entry)
        kept.reason = event.reason

    def _gone(self, node: str, reason: str, told: StoryItem) -> None:
        for kept in self._offers.values():
            if kept.node == node and kept.space == told.space and kept.now > 0:
                kept.now, kept.ended, kept.reason = 0, told, reason

    def _inventory(self, batch: Batch, event: Inventory, told: StoryItem) -> None:
        listed = self._listed.setdefault(batch.node, set())
        listed.update(one.offer for one in event.offers)
        for one in event.offers:
            self._retained(batch, one, told)
        if not event.last:
            return
        for kept in self._offers.values():
            if kept.node == batch.node and kept.now > 0 and kept.offer not in listed:
                kept.now, kept.ended, kept.reason = 0, told, "unlisted"
        del self._listed[batch.node]


def _of_session(kept: Kept, wanted: Wanted) -> bool:
    return bool(wanted.session) and kept.session == wanted.session
