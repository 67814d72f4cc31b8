"""A load as engines report it: to kvferry's ledger, and to Dynamo's router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from kvferry.bench.index.load import Ended, Fact, hashes_of
from kvferry.core.events import Evicted, Retained
from kvferry.core.leases import CACHE
from kvferry.ids import HASH_BYTES, SHORT_BYTES, unpack_short

_encode = msgspec.msgpack.Encoder().encode


class Report(NamedTuple):
    """One event of a node."""

    node: int
    data: bytes
    """As it travels."""
    left: bytes | None = None
    """With an :class:`Evicted`: what the offer lists afterwards, which the coordinator has in its
    state; empty if it ended."""


class LedgerReports:
    """What our connector and agent write: a run for each request that ended, with every
    ``stride``-th block's hash; offers end when a longer one covers them and shrink from the end.
    """

    def __init__(self, unit_blocks: int, stride: int) -> None:
        self._unit_blocks = unit_blocks
        self._stride = stride
        self._offers: dict[str, _Offer] = {}
        self._by_tail: dict[tuple[int, int], str] = {}
        self._owners: dict[tuple[int, int], set[str]] = {}
        self._names = 0

    def of(self, fact: Fact) -> Iterator[Report]:
        """The events of one fact."""
        return self._ended(fact) if isinstance(fact, Ended) else self._gone(fact.node, fact.units)

    def _ended(self, fact: Ended) -> Iterator[Report]:
        node, units = fact.node, fact.units
        self._names += 1
        name = f"{node:016x}.{self._names}"
        covered = [self._by_tail[node, unit] for unit in units if (node, unit) in self._by_tail]
        for unit in units:
            self._owners.setdefault((node, unit), set()).add(name)
        self._offers[name] = _Offer(node, units)
        event = Retained(
            offer=name,
            rev=1,
            tier=CACHE,
            count=len(units) * self._unit_blocks,
            tail=bytes(HASH_BYTES),
            hashes=self._listed(units),
            request=name,
        )
        yield Report(node, _encode(event))
        for old in covered:
            yield self._end(old, "superseded", name)
        self._by_tail[node, units[-1]] = name

    def _gone(self, node: int, units: tuple[int, ...]) -> Iterator[Report]:
        shrunk: dict[str, int] = {}
        for unit in units:
            for name in self._owners.pop((node, unit), ()):
                place = self._offers[name].units.index(unit)
                shrunk[name] = min(shrunk.get(name, place), place)
        for name, keep in shrunk.items():
            offer = self._offers[name]
            if not keep:
                yield self._end(name, "reuse")
                continue
            self._untail(name, offer)
            offer.units, offer.rev = offer.units[:keep], offer.rev + 1
            self._by_tail.setdefault((node, offer.units[-1]), name)
            event = Evicted(
                offer=name, rev=offer.rev, keep=keep * self._unit_blocks, reason="reuse"
            )
            yield Report(node, _encode(event), self._listed(offer.units))

    def _end(self, name: str, reason: str, by: str = "") -> Report:
        offer = self._offers.pop(name)
        self._untail(name, offer)
        for unit in offer.units:
            owners = self._owners.get((offer.node, unit))
            if owners is not None:
                owners.discard(name)
        event = Evicted(offer=name, rev=offer.rev + 1, keep=0, reason=reason, superseded_by=by)
        return Report(offer.node, _encode(event), b"")

    def _untail(self, name: str, offer: _Offer) -> None:
        if self._by_tail.get((offer.node, offer.units[-1])) == name:
            del self._by_tail[offer.node, offer.units[-1]]

    def _listed(self, units: tuple[int, ...]) -> bytes:
        return sampled(hashes_of(units, self._unit_blocks), self._stride)


class _Offer:
    def __init__(self, node: int, units: tuple[int, ...]) -> None:
        self.node = node
        self.units = units
        self.rev = 1


class RouterReports:
    """What engines under Dynamo publish: the hashes of all blocks that came or went, as JSON."""

    def __init__(self, unit_blocks: int) -> None:
        self._unit_blocks = unit_blocks
        self._events = 0

    def of(self, fact: Fact) -> Iterator[Report]:
        """The events of one fact; none where a request brought nothing new."""
        data: dict[str, object]
        if not isinstance(fact, Ended):
            data = {"removed": {"block_hashes": self._numbers(fact.units)}}
        elif fact.before < len(fact.units):
            known = self._numbers(fact.units[fact.before - 1 : fact.before]) if fact.before else ()
            new = self._numbers(fact.units[fact.before :])
            blocks = [{"block_hash": one, "tokens_hash": one} for one in new]
            data = {"stored": {"parent_hash": known[-1] if known else None, "blocks": blocks}}
        else:
            return
        self._events += 1
        event = {"event_id": self._events, "data": data, "dp_rank": 0}
        yield Report(fact.node, json.dumps(event, separators=(",", ":")).encode())

    def _numbers(self, units: tuple[int, ...]) -> tuple[int, ...]:
        return unpack_short(hashes_of(units, self._unit_blocks))


def sampled(hashes: bytes, stride: int) -> bytes:
    """Every ``stride``-th of joined short hashes, as :func:`kvferry.ids.short_hashes` does."""
    if stride == 1:
        return hashes
    step = stride * SHORT_BYTES
    return b"".join(hashes[at - SHORT_BYTES : at] for at in range(step, len(hashes) + 1, step))
