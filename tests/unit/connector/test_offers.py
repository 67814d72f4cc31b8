"""Offers and leases as the ledger sees them: they begin, shrink, are covered and end."""

from __future__ import annotations

import msgspec
from tests.unit.connector.support import chain

from kvferry.core.events import FACTS, Evicted, Retained
from kvferry.ids import short_hashes
from kvferry_connectors.vllm.items import Leased, LeaseRenewed, Offered
from kvferry_connectors.vllm.offers import OfferBook, Out

STRIDE = 4


def book() -> OfferBook:
    return OfferBook(STRIDE)


def offered(to: OfferBook, name: str, hashes: list[bytes]) -> list[Out]:
    return list(to.offered(Offered(name, hashes, f"r-{name}", "s")))


def evictions(out: list[Out]) -> dict[str, tuple[int, str, int]]:
    """Offer to (blocks kept, reason, blocks lost)."""
    found = {}
    for lane, event, cause in out:
        assert lane == FACTS
        assert isinstance(event, Evicted)
        assert cause == event.offer
        found[event.offer] = (event.keep, event.reason, event.count)
    return found


def test_an_offer_says_what_is_kept_and_for_whom() -> None:
    hashes = chain("a", 9)
    ((lane, event, cause),) = offered(book(), "o1", hashes)
    assert (lane, cause) == (FACTS, "o1")
    assert event == Retained(
        offer="o1",
        rev=1,
        tier="cache",
        count=9,
        tail=hashes[8],
        hashes=short_hashes(hashes, STRIDE),
        request="r-o1",
        session="s",
    )


def test_a_longer_chain_covers_the_offers_within_it() -> None:
    made = book()
    hashes = chain("a", 12)
    offered(made, "o1", hashes[:4])
    offered(made, "o2", hashes[:8])
    other = chain("b", 6, hashes[:4])
    offered(made, "o3", other)
    out = offered(made, "o4", hashes)
    assert isinstance(out[0][1], Retained)
    # o1 ended when o2 covered it; o3 diverges and stays.
    assert evictions(out[1:]) == {"o2": (0, "superseded", 8)}
    (ended,) = [event for _, event, _ in out[1:]]
    assert isinstance(ended, Evicted)
    assert ended.superseded_by == "o4"
    assert evictions(list(made.cleared("cleared"))).keys() == {"o3", "o4"}


def test_a_reuse_in_the_middle_keeps_what_lies_before_it() -> None:
    made = book()
    hashes = chain("a", 10)
    offered(made, "o1", hashes)
    assert evictions(list(made.reused([hashes[9]]))) == {"o1": (9, "reuse", 1)}
    assert evictions(list(made.reused([hashes[6], hashes[4]]))) == {"o1": (4, "reuse", 5)}
    assert evictions(list(made.reused([hashes[8]]))) == {}  # It was not offered any more.
    assert evictions(list(made.reused([hashes[0]]))) == {"o1": (0, "reuse", 4)}
    assert list(made.reused(hashes)) == []


def test_revisions_grow() -> None:
    made = book()
    hashes = chain("a", 3)
    offered(made, "o1", hashes)
    events = [event for h in reversed(hashes) for _, event, _ in made.reused([h])]
    assert [e.rev for e in events if isinstance(e, Evicted)] == [2, 3, 4]


def test_a_shared_block_shrinks_every_offer_that_has_it() -> None:
    made = book()
    common = chain("a", 4)
    offered(made, "o1", chain("b", 6, common))
    offered(made, "o2", chain("c", 8, common))
    assert evictions(list(made.reused([common[2]]))) == {
        "o1": (2, "reuse", 4),
        "o2": (2, "reuse", 6),
    }


def test_a_shrunk_offer_is_covered_by_its_new_tail() -> None:
    made = book()
    hashes = chain("a", 8)
    offered(made, "o1", hashes)
    list(made.reused([hashes[5]]))
    out = offered(made, "o2", chain("z", 7, hashes[:5]))
    assert evictions(out[1:]) == {"o1": (0, "superseded", 5)}


def test_a_block_offered_again_after_its_reuse_belongs_to_the_new_offer_only() -> None:
    made = book()
    hashes = chain("a", 4)
    offered(made, "o1", hashes)
    list(made.reused([hashes[3]]))
    out = offered(made, "o2", hashes)
    assert evictions(out[1:]) == {"o1": (0, "superseded", 3)}
    assert evictions(list(made.reused([hashes[3]]))) == {"o2": (3, "reuse", 1)}


def test_a_lease_begins_on_an_offer_and_ends_once() -> None:
    made = book()
    hashes = chain("a", 5)
    offered(made, "o1", hashes)
    ((lane, event, _),) = made.leased(Leased("l1", "o1", 30_000, "handover"))
    assert lane == FACTS
    assert isinstance(event, Retained)
    assert (event.offer, event.tier, event.ttl_ms, event.count) == ("l1", "hbm", 30_000, 5)
    assert event.why == "handover"
    assert evictions(list(made.lease_ended("l1", "expired"))) == {"l1": (0, "expired", 0)}
    assert list(made.lease_ended("l1", "expired")) == []
    assert evictions(list(made.cleared("cleared"))).keys() == {"o1"}


def test_nothing_remains_in_the_book_when_all_is_gone() -> None:
    made = book()
    for name in "abc":
        offered(made, name, chain(name, 6))
    list(made.reused([h for name in "ab" for h in chain(name, 6)]))
    list(made.cleared("paused"))
    assert (made._offers, made._by_hash, made._by_tail) == ({}, {}, {})


def test_a_lease_is_renewed_under_its_name_until_it_ends() -> None:
    made = book()
    offered(made, "o1", chain("a", 5))
    ((_, begun, _),) = made.leased(Leased("l1", "o1", 30_000, "handover"))
    assert evictions(list(made.cleared("reuse"))) == {"o1": (0, "reuse", 5)}  # Its offer is gone.
    ((lane, renewed, cause),) = made.lease_renewed(LeaseRenewed("l1", 9_000, "expected"))
    assert isinstance(begun, Retained)
    assert (lane, cause) == (FACTS, "l1")
    assert renewed == msgspec.structs.replace(begun, rev=2, ttl_ms=9_000, why="expected")
    ((_, ended, _),) = made.lease_ended("l1", "expired")
    assert isinstance(ended, Evicted)
    assert (ended.rev, ended.keep, ended.reason) == (3, 0, "expired")
    assert list(made.lease_renewed(LeaseRenewed("l1", 9_000, "expected"))) == []


def test_what_stands_can_be_told_as_a_whole() -> None:
    offers, hashes = book(), chain("a", 8)
    offered(offers, "o.1", hashes)
    offered(offers, "o.2", chain("b", 4))
    list(offers.leased(Leased("o.2L1", "o.2", 1_000, "session")))
    list(offers.reused([hashes[5]]))
    list(offers.reused([chain("b", 4)[0]]))
    standing = {one.offer: one for one in offers.standing()}
    assert set(standing) == {"o.1", "o.2L1"}
    shrunk = standing["o.1"]
    assert (shrunk.rev, shrunk.count, shrunk.tail) == (2, 5, hashes[4])
    assert shrunk.hashes == short_hashes(hashes[:5], STRIDE)
    list(offers.lease_ended("o.2L1", "expired"))
    assert [one.offer for one in offers.standing()] == ["o.1"]
