"""What became of the KV that a request wanted: the earlier offer, and how and when it ended."""

from __future__ import annotations

from collections.abc import Iterable

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
from kvferry.core.leases import LEASE_TIERS
from kvferry.ids import sample_stride
from kvferry.ports.log import Stored
from kvferry.replay.kept import Background, Kept, Lease
from kvferry.replay.stories import StoryItem, item
from kvferry.replay.wanted import Wanted, split

OFFERS_MAX = 20_000
"""Offers that are remembered while looking for an earlier one; the oldest go first."""
LATE_MS = 30_000
"""An end that the ledger learns of so much later may still be why the blocks were not there: a node
that died is given up once it was silent for long, and later where the leader stood still itself."""


class EarlierOffers:
    """Fed the facts in order, it finds for each wanted run the offer that came nearest.

    Attributes:
        background: what was learned besides.
        chosen: what was found so far.
    """

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self._waiting = sorted(wanted, key=lambda one: one.seq)
        self._hashes = frozenset().union(*(one.hashes for one in self._waiting))
        self._sessions = {one.session for one in self._waiting if one.session}
        self._hinted = {one.hinted for one in self._waiting if one.hinted}
        self._hinted_chains: set[bytes] = set()
        """What these offers hold, so that the longer ones that cover them are known too."""
        self._until_ms = max((one.stored_ms for one in self._waiting), default=0) + LATE_MS
        self._offers: dict[str, Kept] = {}
        self._heirs: dict[str, str] = {}
        """Offer to the longer one that covers it."""
        self._leases: dict[str, Kept] = {}
        self._listed: dict[str, set[str]] = {}
        self._answered: set[str] = set()
        """Sessions of which a request has ended."""
        self.background = Background()
        self.chosen: list[tuple[Wanted, Kept | None]] = []

    def done(self, stored: Stored) -> bool:
        """Whether nothing from this message on can matter."""
        return not self._waiting and stored.stored_ms > self._until_ms

    def feed(self, stream: str, stored: Stored, batch: Batch) -> None:
        """One batch of facts."""
        self.background.first_ms = self.background.first_ms or stored.stored_ms
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
        hinted = wanted.hinted
        while hinted in self._heirs:
            hinted = self._heirs[hinted]

        asked = wanted.failed.source if wanted.failed is not None else ""

        def worth(kept: Kept) -> tuple[bool, bool, int, bool, bool, bool, int]:
            depth, own = kept.depth(wanted), kept.space == wanted.space
            some = own and depth > 0
            # A transfer that failed is explained by what became of its own source.
            there = some and kept.node == asked
            # What the node itself still has, it need not get from others.
            other = kept.node != wanted.node
            whole = kept.now >= depth
            return there, some, depth, kept.offer == hinted, other, whole, kept.begun.seq

        near = [
            kept
            for kept in self._offers.values()
            if kept.request != wanted.request
            and (
                kept.offer == hinted
                or _of_session(kept, wanted)
                or (kept.space == wanted.space and kept.depths.keys() & wanted.hashes)
            )
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
                self._evicted(event, batch, item(stream, stored, batch, entry))
            case NodeJoined():
                known = self.background.joined.get((batch.space, batch.node))
                if known is not None and known.incarnation != event.incarnation:
                    told = item(stream, stored, batch, entry)
                    self._gone(batch.space, batch.node, "restarted", told)
                self.background.joined[batch.space, batch.node] = event
            case NodeLeft():
                told = item(stream, stored, batch, entry)
                self._gone(batch.space, event.node, "node_left", told)
            case NodeClosed():
                told = item(stream, stored, batch, entry)
                self._gone(batch.space, batch.node, "node_closed", told)
            case Inventory():
                self._inventory(batch, event, item(stream, stored, batch, entry))

    def _retained(self, batch: Batch, event: Retained, told: StoryItem) -> None:
        joined = self.background.joined.get((batch.space, batch.node))
        block_size = joined.block_size if joined is not None else 0
        stride = sample_stride(block_size) if block_size > 0 else 1
        depths = {
            one: min(event.count, (event.base // stride + at + 1) * stride)
            for at, one in enumerate(split(event.hashes))
            if one in self._hashes
        }
        if not depths and not self._concerns(event):
            return
        if event.tier in LEASE_TIERS and self._lease(batch, event, told):
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
            tenant=event.tenant,
            tier=event.tier,
            tail=event.tail,
            count=event.count,
            now=event.count,
            depths=depths,
            begun=told,
        )

    def _concerns(self, event: Retained) -> bool:
        """Whether a hint or a session ties the offer to what was wanted."""
        if event.offer in self._hinted:
            self._hinted_chains.update(split(event.hashes))
            return True
        covers = self._hinted_chains and not self._hinted_chains.isdisjoint(split(event.hashes))
        return bool(covers) or event.session in self._sessions

    def _lease(self, batch: Batch, event: Retained, told: StoryItem) -> bool:
        """Note the lease with the offer whose blocks it keeps; False where that is not known."""
        known = self._leases.get(event.offer)
        if known is not None:
            return True  # Renewed.
        for kept in reversed(self._offers.values()):
            if kept.leased_by(event, batch.node):
                self._leases[event.offer] = kept
                kept.lease = Lease(name=event.offer, begun=told, why=event.why)
                return True
        return False

    def _evicted(self, event: Evicted, batch: Batch, told: StoryItem) -> None:
        leased = self._leases.pop(event.offer, None)
        if leased is not None:
            if leased.lease is not None and leased.lease.name == event.offer:
                leased.lease.ended, leased.lease.reason = told, event.reason
            return  # Its blocks may live on in the cache.
        kept = self._offers.get(event.offer)
        if kept is None or kept.node != batch.node or event.keep >= kept.now:
            return
        heir = self._offers.get(event.superseded_by)
        if heir is not None:
            # A longer run of the same chain on the same node: nothing is lost.
            heir.depths.update(kept.depths)
            self._heirs[event.offer] = heir.offer
            del self._offers[event.offer]
            return
        kept.now = max(0, event.keep)
        kept.ended = told
        kept.reason = event.reason

    def _gone(self, space: str, node: str, reason: str, told: StoryItem) -> None:
        for kept in self._offers.values():
            if (kept.space, kept.node) == (space, node) and kept.now > 0:
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
