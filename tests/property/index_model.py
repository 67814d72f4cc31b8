"""Who holds which prefix, computed as slowly and plainly as possible, and histories of offers.

An index is right if it answers every chain of a history as :func:`answers` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from kvferry.ids import SHORT_BYTES
from kvferry.index.residency import Offered, Residency

STRIDE = 4
"""Blocks between two samples in these histories."""
TIERS = ("hbm", "cache", "host")
NODES = ("n0", "n1", "n2")


@dataclass(frozen=True)
class Offer:
    """What a node offers: ``hashes`` lists samples from block ``base`` on."""

    node: str
    tier: str
    hashes: bytes
    base: int = 0


@dataclass(frozen=True)
class Put:
    """An offer begins, or becomes another one: longer, shorter, elsewhere."""

    name: str
    offer: Offer


@dataclass(frozen=True)
class Drop:
    """An offer ends, if there is one of that name."""

    name: str


def samples(joined: bytes) -> list[bytes]:
    """The samples that were joined."""
    return [joined[at : at + SHORT_BYTES] for at in range(0, len(joined), SHORT_BYTES)]


def answers(
    offers: Iterable[Offered], chain: bytes, stride: int = STRIDE
) -> dict[str, tuple[int, str]]:
    """How many samples of a chain each node holds, and in how good a tier, by node."""
    mine: dict[str, list[Offered]] = {}
    for offer in offers:
        mine.setdefault(offer.node, []).append(offer)
    found = {}
    for node, its in mine.items():
        most = _walk(its, chain, stride)
        for count in range(1, len(TIERS) + 1):
            good = [offer for offer in its if offer.tier in TIERS[:count]]
            if most and _walk(good, chain, stride) == most:
                found[node] = (most, TIERS[count - 1])
                break
    return found


def distinct(offers: Iterable[Offered], stride: int = STRIDE) -> int:
    """Hashes that somebody holds, each once for every place where runs begin that list it."""
    listed = set()
    for offer in offers:
        if offer.base % stride == 0:
            listed |= {(offer.base, one) for one in samples(offer.hashes)}
    return len(listed)


def _walk(offers: Sequence[Offered], chain: bytes, stride: int) -> int:
    """Sample by sample, until one that none of the offers lists in its place."""
    for place, one in enumerate(samples(chain)):
        if not any(_lists(offer, place, one, stride) for offer in offers):
            return place
    return len(samples(chain))


def _lists(offer: Offered, place: int, one: bytes, stride: int) -> bool:
    if offer.base % stride:
        return False
    listed = samples(offer.hashes)
    at = place - offer.base // stride
    return 0 <= at < len(listed) and listed[at] == one


def check(residency: Residency, offers: Mapping[str, Offered], chains: Sequence[bytes]) -> None:
    """Every question has the plain model's answer, in the right order, and nothing else is kept."""
    for chain in chains:
        found = residency.holders(chain)
        expected = answers(offers.values(), chain)
        assert {held.node: (held.samples, held.tier) for held in found} == expected
        assert found == sorted(found, key=lambda held: (-held.samples, held.node))
        for limit in (1, 2):
            most = [(held.node, held.samples) for held in residency.holders(chain, limit=limit)]
            assert len(set(most)) == min(limit, len(found))
            assert [samples for _, samples in most] == [held.samples for held in found[:limit]]
            assert set(most) <= {(held.node, held.samples) for held in found}
        others = residency.holders(chain, usable=lambda node: node != "n0")
        assert others == [held for held in found if held.node != "n0"]
    names: dict[str, set[str]] = {}
    for name, offer in offers.items():
        names.setdefault(offer.node, set()).add(name)
    assert residency.offers() == names
    assert residency.samples() == distinct(offers.values())


def play(history: History, residency: Residency) -> None:
    """Do all of it and check after every step."""
    offers: dict[str, Offered] = {}
    for step in history.steps:
        if isinstance(step, Put):
            residency.put(step.name, step.offer, STRIDE)
            offers[step.name] = step.offer
        else:
            residency.drop(step.name)
            offers.pop(step.name, None)
        check(residency, offers, history.chains)


@dataclass(frozen=True)
class History:
    """Chains that fork, and what becomes of the offers that hold parts of them."""

    chains: tuple[bytes, ...]
    steps: tuple[Put | Drop, ...]


@st.composite
def chains(draw: st.DrawFn) -> tuple[bytes, ...]:
    """Chains of which some share a prefix; a sample commits to what is before it."""
    grown: list[bytes] = []
    for number in range(draw(st.integers(1, 6))):
        chain = b""
        if grown and draw(st.booleans()):
            parent = draw(st.sampled_from(grown))
            chain = parent[: draw(st.integers(0, len(parent) // SHORT_BYTES)) * SHORT_BYTES]
        for _ in range(draw(st.integers(0, 7))):
            chain += hashlib.sha256(chain + bytes([number])).digest()[:SHORT_BYTES]
        grown.append(chain)
    return tuple(grown)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Offers and leases that overlap, grow, shrink from the end, lie in several tiers, move and
    end; some begin later in their chain, on a sample of the grid or beside it."""
    known = draw(chains())
    steps: list[Put | Drop] = []
    for _ in range(draw(st.integers(1, 20))):
        name = f"o{draw(st.integers(0, 7))}"
        if draw(st.integers(0, 4)) == 0:
            steps.append(Drop(name))
            continue
        chain = draw(st.sampled_from(known))
        keep = draw(st.integers(0, len(chain) // SHORT_BYTES))
        skipped = draw(st.integers(0, keep)) if draw(st.booleans()) else 0
        beside = draw(st.sampled_from([0, 0, 0, 1])) if skipped else 0
        offer = Offer(
            node=draw(st.sampled_from(NODES)),
            tier=draw(st.sampled_from(TIERS)),
            hashes=chain[skipped * SHORT_BYTES : keep * SHORT_BYTES],
            base=skipped * STRIDE + beside,
        )
        steps.append(Put(name, offer))
    return History(known, tuple(steps))
