"""Offers and leases as the ledger sees them: how they begin, shrink, are covered and end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from kvferry.core.events import FACTS, Event, Evicted, Retained
from kvferry.ids import short_hashes
from kvferry_connectors.vllm.items import HostOffered, Leased, LeaseRenewed, Offered

Out: TypeAlias = tuple[str, Event, str]


class _Offer:
    """One offer: a chain from its first block on, of which the first ``keep`` are still there."""

    __slots__ = ("hashes", "id", "keep", "request", "rev", "session", "tenant")

    def __init__(self, item: Offered | HostOffered) -> None:
        self.id = item.offer
        self.hashes = item.hashes
        self.keep = len(item.hashes)
        self.rev = 1
        self.request = item.request
        self.session = item.session
        self.tenant = item.tenant

    @property
    def tail(self) -> bytes:
        return self.hashes[self.keep - 1]


class OfferBook:
    """All offers of one tier of an engine, and the leases on them. On the node agent's thread."""

    def __init__(self, stride: int, tier: str = "cache") -> None:
        self._stride = stride
        self._tier = tier
        self._offers: dict[str, _Offer] = {}
        self._by_hash: dict[bytes, tuple[int, tuple[str, ...]]] = {}
        """Chain hash to its place in its chain and the offers that hold it."""
        self._by_tail: dict[bytes, str] = {}
        self._leases: dict[str, Retained] = {}
        """The last event of each lease that stands."""

    def offered(self, item: Offered | HostOffered) -> Iterator[Out]:
        """A chain is offered; offers that it covers end as superseded."""
        offer = _Offer(item)
        covered = [self._by_tail[h] for h in item.hashes if h in self._by_tail]
        for place, chain_hash in enumerate(item.hashes):
            owners = self._by_hash.get(chain_hash, (place, ()))[1]
            self._by_hash[chain_hash] = (place, (*owners, offer.id))
        self._offers[offer.id] = offer
        self._by_tail[offer.tail] = offer.id
        yield FACTS, self._retained(offer), offer.id
        for old in covered:
            yield self._end(old, "superseded", offer.id)

    def leased(self, item: Leased) -> Iterator[Out]:
        """A lease on an offer's blocks begins."""
        offer = self._offers.get(item.offer)
        if offer is not None:
            event = self._lease_of(item.lease, offer, item.ttl_ms, item.why)
            self._leases[item.lease] = event
            yield FACTS, event, item.lease

    def lease_renewed(self, item: LeaseRenewed) -> Iterator[Out]:
        """A lease goes on."""
        known = self._leases.get(item.lease)
        if known is not None:
            event = msgspec.structs.replace(
                known, rev=known.rev + 1, ttl_ms=item.ttl_ms, why=item.why
            )
            self._leases[item.lease] = event
            yield FACTS, event, item.lease

    def lease_ended(self, lease: str, reason: str) -> Iterator[Out]:
        """A lease ends; its offer may live on in the cache."""
        known = self._leases.pop(lease, None)
        if known is not None:
            yield FACTS, Evicted(offer=lease, rev=known.rev + 1, keep=0, reason=reason), lease

    def reused(self, hashes: list[bytes], reason: str = "reuse") -> Iterator[Out]:
        """Blocks are gone: each offer that had them keeps what lies before the first of them."""
        shrunk: dict[str, int] = {}
        for chain_hash in hashes:
            place, owners = self._by_hash.pop(chain_hash, (0, ()))
            for name in owners:
                shrunk[name] = min(shrunk.get(name, place), place)
        for name, keep in shrunk.items():
            offer = self._offers.get(name)
            if offer is None or keep >= offer.keep:
                continue
            if keep == 0:
                yield self._end(name, reason)
                continue
            lost = offer.keep - keep
            self._untail(offer)
            offer.keep = keep
            offer.rev += 1
            self._by_tail.setdefault(offer.tail, name)
            event = Evicted(offer=name, rev=offer.rev, keep=keep, reason=reason, count=lost)
            yield FACTS, event, name

    def cleared(self, reason: str) -> Iterator[Out]:
        """Everything ends."""
        for name in list(self._offers):
            yield self._end(name, reason)

    def standing(self) -> Iterator[Retained]:
        """Every offer and lease as it stands, for an inventory."""
        for offer in self._offers.values():
            yield msgspec.structs.replace(self._retained(offer), rev=offer.rev)
        yield from self._leases.values()

    def chain(self, name: str, rev: int) -> Sequence[bytes] | None:
        """Chain hashes of an offer as it stands; None if it has gone or has another rev."""
        offer = self._offers.get(name)
        if offer is None or offer.rev != rev:
            return None
        return offer.hashes[: offer.keep]

    def _untail(self, offer: _Offer) -> None:
        if self._by_tail.get(offer.tail) == offer.id:
            del self._by_tail[offer.tail]

    def _end(self, name: str, reason: str, by: str = "") -> Out:
        offer = self._offers.pop(name)
        self._untail(offer)
        for chain_hash in offer.hashes:
            place, owners = self._by_hash.get(chain_hash, (0, ()))
            rest = tuple(owner for owner in owners if owner != name)
            if rest:
                self._by_hash[chain_hash] = (place, rest)
            else:
                self._by_hash.pop(chain_hash, None)
        event = Evicted(
            offer=name,
            rev=offer.rev + 1,
            keep=0,
            reason=reason,
            count=offer.keep,
            superseded_by=by,
        )
        return FACTS, event, name

    def _retained(self, offer: _Offer) -> Retained:
        return Retained(
            offer=offer.id,
            rev=1,
            tier=self._tier,
            count=offer.keep,
            tail=bytes(offer.tail),
            hashes=short_hashes(offer.hashes[: offer.keep], self._stride),
            request=offer.request,
            session=offer.session,
            tenant=offer.tenant,
        )

    def _lease_of(self, lease: str, offer: _Offer, ttl_ms: int, why: str) -> Retained:
        return msgspec.structs.replace(
            self._retained(offer), offer=lease, tier="hbm", ttl_ms=ttl_ms, why=why
        )
