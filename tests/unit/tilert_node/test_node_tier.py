"""Leases in a node's host tier: what is pinned stays, what was overwritten is void, what is not
committed leaves nothing."""

from __future__ import annotations

import hashlib

import pytest

from kvferry.core.events import PinEnded
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.wire import Done, Granted, Pin, Refused
from kvferry_connectors.tilert.node.tier import FIRST, Draft, Tier
from kvferry_connectors.tilert.origin import OriginRefused
from kvferry_connectors.vllm.book import Book


def chain(name: str, count: int) -> list[bytes]:
    return [hashlib.sha256(f"{name}{n}".encode()).digest() for n in range(count)]


class Bench:
    def __init__(self, slots: int) -> None:
        self.ended: list[PinEnded] = []
        self.exports = ExportTable("life", on_pin_ended=self.ended.append)
        self.exports.set_host(FIRST)
        self.exports.set_ranks([RankEndpoint(b"k" * 32, {}, {"tcp": b""})])
        book = Book(64, delay=1)
        self.outbox = Outbox(translate=book.translate)
        self.tier = Tier(self.exports, self.outbox, "life", slots)
        self.exports.check = self.tier.present

    def keep(
        self, name: str, prompt: int, more: int, session: str = "", retain_s: float = 0.0
    ) -> Draft:
        hashes = chain(name, prompt + more)
        draft = self.tier.begin(hashes[:prompt], session)
        self.tier.extend(draft, hashes[prompt:])
        self.tier.commit(draft, name, session, retain_s=retain_s)
        return draft

    def pin(self, name: str, count: int) -> Granted | Refused:
        frame = Pin(
            transfer=f"t-{name}",
            incarnation="life",
            hashes=tuple(chain(name, count)),
            deadline_ms=60_000,
            ranks=1,
            host=True,
        )
        return self.exports.pin("p0", frame)

    def intact(self, name: str) -> bool:
        return self.exports.done("p0", Done(transfer=f"t-{name}", rank=0)).intact


def test_a_pinned_chain_stays_and_is_intact() -> None:
    bench = Bench(slots=4)
    bench.keep("a", 2, 1)
    granted = bench.pin("a", 3)
    assert isinstance(granted, Granted)
    assert (len(granted.blocks), granted.host_first) == (3, FIRST)
    with pytest.raises(OriginRefused, match="being read"):
        bench.keep("b", 1, 2)
    assert bench.intact("a")
    assert [e.how for e in bench.ended] == ["intact"]
    bench.keep("c", 2, 1)
    assert bench.tier.held(chain("c", 3)) == 3
    assert bench.tier.held(chain("a", 3)) < 3


def test_what_goes_while_it_is_read_is_void() -> None:
    bench = Bench(slots=4)
    bench.keep("a", 2, 1)
    assert isinstance(bench.pin("a", 3), Granted)
    bench.tier.clear("paused")
    assert not bench.intact("a")


def test_a_draft_is_nobodys_before_it_is_whole() -> None:
    bench = Bench(slots=4)
    draft = bench.tier.begin(chain("a", 2), "")
    assert isinstance(bench.pin("a", 2), Refused)
    bench.tier.drop(draft)
    bench.tier.drop(draft)  # Once more changes nothing.
    bench.keep("b", 3, 1)  # All slots are free again.
    assert isinstance(bench.pin("b", 4), Granted)


def test_two_chains_share_what_they_have_in_common() -> None:
    bench = Bench(slots=5)
    bench.keep("a", 2, 1)
    hashes = [*chain("a", 3), *chain("b", 2)]
    draft = bench.tier.begin(hashes[:3], "")
    assert (draft.have, draft.slots) == (3, [])
    assert len(bench.tier.extend(draft, hashes[3:])) == 2
    bench.tier.commit(draft, "b", "")
    assert bench.tier.held(hashes) == 5


def test_a_prompt_that_leaves_no_room_for_an_answer_makes_nobody_give_way() -> None:
    bench = Bench(slots=3)
    bench.keep("a", 2, 1)
    with pytest.raises(OriginRefused, match="4 blocks, the host tier 3"):
        bench.tier.begin(chain("b", 3), "")
    assert bench.tier.held(chain("a", 3)) == 3


def test_the_end_of_a_session_is_its_own_tenants() -> None:
    bench = Bench(slots=8)
    bench.keep("a", 2, 1, session="s")
    bench.keep("b", 2, 1, session="s")
    bench.tier.end_session("s", chain("a", 1)[0])
    assert bench.tier.held(chain("a", 3)) == 0
    assert bench.tier.held(chain("b", 3)) == 3


def test_what_is_over_a_lowered_budget_goes_but_not_while_it_is_read_or_written() -> None:
    bench = Bench(slots=8)
    bench.keep("a", 2, 1)
    bench.keep("b", 1, 1)
    draft = bench.tier.begin(chain("a", 2), "")  # It has blocks in common with what is there.
    assert isinstance(bench.pin("b", 2), Granted)
    bench.tier.allow(0.25)
    assert bench.tier.held(chain("a", 3)) == 2
    assert bench.tier.over
    with pytest.raises(OriginRefused, match="4 blocks, the host tier 8; of which 2 may be in use"):
        bench.tier.extend(draft, chain("a", 4)[2:])
    bench.tier.drop(draft)
    bench.tier.fit()
    assert bench.tier.held(chain("a", 3)) == 0
    assert not bench.tier.over
    assert bench.intact("b")


def test_what_a_client_asked_for_gives_way_last() -> None:
    bench = Bench(slots=6)
    bench.keep("asked", 1, 1, retain_s=3600.0)
    bench.keep("b", 1, 1)
    bench.keep("c", 2, 1)
    assert bench.tier.held(chain("asked", 2)) == 2
    assert bench.tier.held(chain("b", 2)) == 1
    bench.keep("long", 4, 2)
    assert bench.tier.held(chain("asked", 2)) == 0  # A wish, not a reservation.
