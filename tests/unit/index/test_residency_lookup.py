"""Longest prefixes by node: against a plain model, with holes, shared and shrinking offers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.ids import pack_short
from kvferry.index.residency import Residency

STRIDE = 4


@dataclass
class Offer:
    node: str
    samples: tuple[int, ...]
    base: int = 0
    tier: str = "cache"

    @property
    def hashes(self) -> bytes:
        return pack_short(self.samples)


def forked_chains(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Chains of which some share a prefix with an earlier one."""
    chains: list[tuple[int, ...]] = []
    for _ in range(count):
        kept: tuple[int, ...] = ()
        if chains and rng.random() < 0.7:
            parent = rng.choice(chains)
            kept = parent[: rng.randint(0, len(parent))]
        fresh = tuple(rng.getrandbits(64) for _ in range(rng.randint(0, 9)))
        chains.append(kept + fresh)
    return chains


def model(offers: dict[str, Offer], chain: tuple[int, ...]) -> dict[str, int]:
    """Walk the chain sample by sample, as slowly and plainly as possible."""
    found: dict[str, int] = {}
    for node in {offer.node for offer in offers.values()}:
        mine = [offer for offer in offers.values() if offer.node == node]
        whole = {one for offer in mine if offer.base == 0 for one in offer.samples}
        later = {
            one
            for offer in mine
            if offer.base and offer.base % STRIDE == 0
            for one in offer.samples
        }
        reach = 0
        while reach < len(chain) and chain[reach] in whole:
            reach += 1
        while reach and reach < len(chain) and chain[reach] in later:
            reach += 1
        if reach:
            found[node] = reach
    return found


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_any_history_of_offers_answers_like_the_plain_model(seed: int) -> None:
    rng = random.Random(seed)
    chains = forked_chains(rng, 8)
    residency, offers = Residency(), dict[str, Offer]()
    for _ in range(rng.randint(1, 40)):
        name = f"o{rng.randint(0, 9)}"
        if rng.random() < 0.3:
            residency.drop(name)
            offers.pop(name, None)
            continue
        chain = rng.choice(chains)
        keep = rng.randint(0, len(chain))
        skipped = rng.choice([0, 0, 0, rng.randint(0, keep)])
        base = skipped * STRIDE + rng.choice([0, 0, 1]) if skipped else 0
        offer = Offer(f"n{rng.randint(0, 2)}", chain[skipped:keep], base)
        residency.put(name, offer, STRIDE)
        offers[name] = offer
    for chain in chains:
        found = residency.lookup(chain)
        assert dict(found) == model(offers, chain)
        assert [reach for _, reach in found] == sorted((r for _, r in found), reverse=True)
        assert all(node != "n0" for node, _ in residency.lookup(chain, exclude="n0"))


def test_a_hole_is_never_jumped() -> None:
    chain = tuple(range(100, 110))
    residency = Residency()
    residency.put("head", Offer("d0", chain[:6]), STRIDE)
    residency.put("rest", Offer("d0", chain[6:], base=6 * STRIDE), STRIDE)
    assert residency.lookup(chain) == [("d0", 10)]
    residency.put("head", Offer("d0", chain[:3]), STRIDE)
    assert residency.lookup(chain) == [("d0", 3)]
    residency.drop("head")
    assert residency.lookup(chain) == []


def test_an_offer_that_begins_between_samples_extends_nothing() -> None:
    chain = tuple(range(100, 110))
    residency = Residency()
    residency.put("head", Offer("d0", chain[:6]), STRIDE)
    residency.put("rest", Offer("d0", chain[6:], base=6 * STRIDE + 1), STRIDE)
    assert residency.lookup(chain) == [("d0", 6)]


def test_what_two_offers_list_outlives_one_of_them() -> None:
    chain = tuple(range(100, 110))
    residency = Residency()
    residency.put("one", Offer("d0", chain), STRIDE)
    residency.put("two", Offer("d0", chain[:5]), STRIDE)
    residency.drop("one")
    assert residency.lookup(chain) == [("d0", 5)]
    residency.drop("two")
    residency.drop("two")
    assert residency.lookup(chain) == []
    assert residency.samples() == 0
    assert residency.offers() == {}


def test_an_offer_that_moves_to_another_node_leaves_the_first() -> None:
    chain = (1, 2, 3)
    residency = Residency()
    residency.put("one", Offer("d0", chain), STRIDE)
    residency.put("one", Offer("d1", chain), STRIDE)
    assert residency.lookup(chain) == [("d1", 3)]
