"""Offers: revs, evictions, inventories, whose they are."""

from __future__ import annotations

import pytest
from tests.unit.core.support import retained, started

from kvferry.core.events import Evicted, Inventory
from kvferry.ids import pack_short


def evicted(offer: str, rev: int, keep: int, reason: str = "reuse", count: int = 0) -> Evicted:
    return Evicted(offer=offer, rev=rev, keep=keep, reason=reason, count=count)


def test_a_higher_rev_replaces_and_a_known_one_is_ignored() -> None:
    ledger, (node,) = started("d0")
    node.write(retained("o", rev=1, count=16))
    node.write(retained("o", rev=2, count=32, tier="hbm", ttl_ms=5_000, session="s"))
    node.write(retained("o", rev=1, count=8))
    offer = ledger.space.offers["o"]
    assert (offer.rev, offer.count, offer.tier, offer.hashes) == (
        2,
        32,
        "hbm",
        pack_short((1, 2, 3, 4)),
    )
    assert (offer.node, offer.incarnation, offer.ttl_ms) == ("d0", "d0-a", 5_000)
    assert ledger.space.totals.repeated == {"retained": 1}


def test_an_eviction_shortens_count_and_hashes() -> None:
    ledger, (node,) = started("d0")
    node.write(retained("o", count=32))
    (applied,) = node.write(evicted("o", rev=2, keep=17, count=15))
    offer = ledger.space.offers["o"]
    assert (offer.count, offer.hashes, offer.tail) == (17, pack_short((1, 2)), b"")
    assert applied.offers == ("o",)
    node.write(evicted("o", rev=3, keep=40))  # cannot grow
    assert ledger.space.offers["o"].count == 17
    assert ledger.space.totals.evicted_blocks == {"reuse": 15}


def test_keep_zero_ends_the_offer() -> None:
    ledger, (node,) = started("d0")
    node.write(retained("o"))
    (applied,) = node.write(evicted("o", rev=2, keep=0, reason="expired", count=20))
    assert (ledger.space.offers, applied.offers) == ({}, ("o",))
    assert ledger.space.totals.evictions == {"expired": 1}


def test_an_old_or_strange_eviction_changes_nothing() -> None:
    ledger, (node, other) = started("d0", "d1")
    node.write(retained("o", rev=3))
    node.write(evicted("o", rev=3, keep=0), evicted("unknown", rev=1, keep=0))
    other.write(evicted("o", rev=9, keep=0), retained("o", rev=9, count=99))
    assert ledger.space.offers["o"].count == 20
    assert ledger.space.totals.strays == {"evicted": 2, "retained": 1}
    assert ledger.space.totals.evictions == {}


def test_the_engines_own_evictions_only_count() -> None:
    ledger, (node,) = started("d0")
    node.write(evicted("", rev=0, keep=0, count=7))
    assert ledger.space.totals.evicted_blocks == {"reuse": 7}
    assert ledger.space.totals.strays == {}


def test_hashes_beyond_the_run_or_torn_are_cut() -> None:
    ledger, (node,) = started("d0")
    node.write(retained("long", count=9, hashes=b"\0" * 80), retained("torn", hashes=b"\0" * 11))
    assert ledger.space.offers["long"].hashes == bytes(8)
    assert ledger.space.offers["torn"].hashes == bytes(8)
    assert ledger.space.totals.strays == {"retained_hashes": 1}


def test_a_base_shifts_what_the_hashes_list() -> None:
    ledger, (node,) = started("d0")
    node.write(retained("o", count=32, base=16, hashes=b"\0" * 32))
    assert ledger.space.offers["o"].hashes == bytes(16)
    node.write(evicted("o", rev=2, keep=24))
    assert ledger.space.offers["o"].hashes == bytes(8)
    node.write(evicted("o", rev=3, keep=4))
    assert ledger.space.offers["o"].hashes == b""


@pytest.mark.parametrize("count", [0, -3])
def test_a_run_without_blocks_is_no_offer(count: int) -> None:
    ledger, (node,) = started("d0")
    node.write(retained("o", count=count))
    assert ledger.space.offers == {}
    assert ledger.space.totals.strays == {"retained": 1}


def test_an_inventory_replaces_as_a_whole_at_its_last_part() -> None:
    ledger, (node, other) = started("d0", "d1")
    other.write(retained("other"))
    node.write(retained("gone"), retained("same"), retained("newer", rev=5))
    node.join()
    node.write(Inventory(part=0, last=False, offers=(retained("same", rev=1, count=8),)))
    assert set(ledger.space.offers) == {"other", "gone", "same", "newer"}
    (applied,) = node.write(
        Inventory(part=1, last=True, offers=(retained("newer", rev=4), retained("late")))
    )
    assert set(ledger.space.offers) == {"other", "same", "newer", "late"}
    assert ledger.space.offers["same"].count == 8
    assert ledger.space.offers["newer"].rev == 5
    assert set(applied.offers) == {"gone", "same", "late"}
    assert ledger.node("d0").inventory == []


def test_an_inventory_begun_again_forgets_the_torn_one() -> None:
    ledger, (node,) = started("d0")
    node.write(Inventory(part=0, last=False, offers=(retained("torn"),)))
    node.write(Inventory(part=0, last=True, offers=(retained("whole"),)))
    assert set(ledger.space.offers) == {"whole"}
