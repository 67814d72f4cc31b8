"""Decode slots: the table over its full product, and what is decided and folded."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from tests.unit.core.support import SPACE, Ledger

from kvferry.core.apply import cross_hole
from kvferry.core.decide import decide
from kvferry.core.decision import SLOT_REFUSALS, Decision
from kvferry.core.digest import digest
from kvferry.core.events import SlotChanged
from kvferry.core.invariants import violations
from kvferry.core.slots import (
    DECODING,
    ENDS,
    FREE,
    GRANTED,
    HELD,
    IDLE_LIMIT_MS,
    SEND_SHARE,
    SLOT_CHANGES,
    SLOT_PHASES,
    SLOT_TABLE,
    SURE_SHARE,
    UNKNOWN,
    UNSURE,
    SlotNode,
)
from kvferry.core.slots_commands import ChangeSlot, DrainSlot, LendSlot, NameSlot, SlotCommand
from kvferry.core.slots_state import (
    RETRY_MIN_MS,
    RETRY_UNKNOWN_MS,
    SLOT_NODES_MAX,
    SlotState,
    retry_after_ms,
)
from kvferry.core.snapshot import decode, encode
from kvferry.core.transfer import allowed_events, step
from kvferry.errors import IllegalTransition

NOW_MS = 1_000_000
PAIRS = list(itertools.product(SLOT_PHASES, SLOT_CHANGES))
WAYS = {UNSURE: ("abandoned",), DECODING: ("confirmed",)}
"""What leads a granted slot into each phase."""


def node(name: str, port: int = 0, **more: Any) -> SlotNode:
    at = port or 5_000 + 2 * int(name[1:])
    return SlotNode(name=name, http=f"http://h:{at}", control=f"h:{at + 1}", **more)


class Pool(Ledger):
    """A ledger in miniature with a leader and decode nodes."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.lead()
        for name in names:
            assert self.do(NameSlot(space=SPACE, node=node(name), who="r")).events

    def do(self, command: SlotCommand) -> Decision:
        """Decide and store; the outcome is sound."""
        made = decide(self.state, command, NOW_MS)
        assert made.reason in ("", *SLOT_REFUSALS)
        assert bool(made.reason) == bool(made.refused)
        if made.events:
            self.decide(*[event for _, event in made.events])
        assert violations(self.state) == []
        return made

    def lend(self, request: str, *names: str, holder: str = "r.1", **more: Any) -> Decision:
        values: dict[str, Any] = {"number": 1, **more}
        return self.do(
            LendSlot(space=SPACE, holder=holder, request=request, candidates=names, **values)
        )

    def change(self, name: str, fence: int, change: str, holder: str = "r.1") -> Decision:
        return self.do(
            ChangeSlot(space=SPACE, node=name, fence=fence, change=change, holder=holder)
        )

    def slot(self, name: str) -> SlotState:
        return self.space.slots.nodes[name]


def granted(made: Decision) -> SlotChanged:
    ((_, event),) = made.events
    assert isinstance(event, SlotChanged)
    assert event.change == "granted"
    return event


@pytest.mark.parametrize(("phase", "change"), PAIRS)
def test_every_pair_moves_or_is_illegal(phase: str, change: str) -> None:
    if (phase, change) in SLOT_TABLE:
        assert step(SLOT_TABLE, phase, change) in SLOT_PHASES
        return
    with pytest.raises(IllegalTransition) as caught:
        step(SLOT_TABLE, phase, change)
    for other in allowed_events(SLOT_TABLE, phase):
        assert other in str(caught.value)


def in_phase(phase: str) -> Pool:
    """A pool whose node t0 is in that phase."""
    if phase == UNKNOWN:
        return Pool()
    pool = Pool("t0")
    if phase != FREE:
        granted(pool.lend("a", "t0"))
        for change in WAYS.get(phase, ()):
            assert pool.change("t0", 1, change).events
    assert pool.slot("t0").phase == phase
    return pool


@pytest.mark.parametrize(("phase", "change"), PAIRS)
def test_the_fold_follows_the_table_and_nothing_else(phase: str, change: str) -> None:
    pool = in_phase(phase)
    before = digest(pool.state)
    fence = pool.space.slots.fence + (change == "granted")
    event = SlotChanged(term=1, node="t0", change=change, fence=fence, holder="r.1", request="b")
    pool.decide(event)
    assert violations(pool.state) == []
    expected = SLOT_TABLE.get((phase, change))
    if expected is None:
        assert pool.space.totals.strays == {"slot_changed": 1}
        assert before != digest(pool.state), "it is counted"
        assert ("t0" in pool.space.slots.nodes) == (phase != UNKNOWN)
    else:
        assert pool.slot("t0").phase == expected
        assert pool.space.totals.strays == {}
    if phase != UNKNOWN:
        assert pool.slot("t0").phase == (expected or phase)


def test_a_lease_ends_in_the_four_ways_and_only_idleness_frees_what_nobody_saw() -> None:
    freeing = {change for (phase, change), to in SLOT_TABLE.items() if phase in HELD and to == FREE}
    assert freeing == set(ENDS)
    assert (DECODING, "refused_before_admission") not in SLOT_TABLE, "it was admitted"
    assert not [pair for pair in SLOT_TABLE if pair[0] != FREE and pair[1] == "granted"]
    assert (UNSURE, "granted") not in SLOT_TABLE


def test_what_a_dead_holders_request_may_still_do_ends_before_the_idle_limit() -> None:
    assert SURE_SHARE + SEND_SHARE < 1
    one = SlotNode(name="t0", http="", control="")
    assert one.idle_limit_ms == IDLE_LIMIT_MS == 120_000
    assert (one.sure_s, one.send_within_s) == (15.0, 90.0)


def test_a_node_is_lent_to_one_request_and_the_refusal_says_to_whom() -> None:
    pool = Pool("t0", "t1")
    assert granted(pool.lend("a", "t1", "t0", session="s", waited_ms=7.0)).node == "t1"
    assert granted(pool.lend("b", "t1", "t0", holder="q.1")).node == "t0"
    refused = pool.lend("c", "t0", "t1")
    assert (refused.reason, refused.events) == ("busy", ())
    assert "t0 is lent for" in refused.refused
    assert "request b of router q.1 (fence 2)" in refused.refused
    assert "request a of router r.1 (fence 1)" in refused.refused
    assert pool.slot("t1").session == "s"


def test_a_repeated_question_changes_nothing() -> None:
    pool = Pool("t0", "t1")
    first = granted(pool.lend("a", "t0"))
    assert pool.lend("a", "t0", "t1") == Decision(), "its answer got lost: the lease is the answer"
    other = granted(pool.lend("a", "t0", "t1", holder="q.1"))
    assert other.node == "t1", "another router's request of that name is another request"
    assert pool.change("t0", first.fence, "confirmed").events
    assert pool.change("t0", first.fence, "confirmed") == Decision()
    assert pool.change("t0", first.fence, "replied").events
    for again in ("replied", "cancelled", "abandoned"):
        assert pool.change("t0", first.fence, again) == Decision()
    assert pool.change("t0", first.fence, "confirmed").reason == "fence"


def test_who_asks_anew_never_heard_of_the_lease_that_it_has() -> None:
    pool = Pool("t0", "t1")
    granted(pool.lend("a", "t0", number=4))
    assert pool.lend("a", "t0", number=3) == Decision(), "an earlier question that came late"
    (_, over), (_, grant) = pool.lend("a", "t0", number=6).events
    assert isinstance(over, SlotChanged)
    assert isinstance(grant, SlotChanged)
    assert (over.change, over.fence) == ("refused_before_admission", 1)
    assert (grant.node, grant.fence, grant.number) == ("t0", 2, 6)
    other = pool.lend("a", "t1", number=7)
    assert [event.node for _, event in other.events] == ["t0", "t1"]  # type: ignore[union-attr]
    assert pool.slot("t0").phase == FREE
    pool.do(DrainSlot(space=SPACE, node="t1", drained=True))
    drained = pool.lend("a", "t1", number=8)
    assert (len(drained.events), drained.reason) == (1, "drained")
    granted(pool.lend("a", "t0", number=9))
    pool.change("t0", pool.slot("t0").fence, "confirmed")
    refused = pool.lend("a", "t0", "t1", number=10)
    assert (refused.reason, refused.events) == ("in_use", ())


def test_fences_grow_over_all_nodes_and_an_older_one_ends_nothing() -> None:
    pool = Pool("t0", "t1")
    assert granted(pool.lend("a", "t0")).fence == 1
    assert granted(pool.lend("b", "t1")).fence == 2
    assert pool.change("t0", 1, "replied").events
    assert granted(pool.lend("c", "t0")).fence == 3
    refused = pool.change("t0", 1, "replied")
    assert refused.reason == "fence"
    assert "is over: the slot has fence 3 now" in refused.refused
    assert pool.change("t0", 4, "replied").reason == "fence"
    assert pool.change("t0", 3, "replied", holder="q.1").reason == "holder"
    assert pool.slot("t0").phase == GRANTED
    pool.decide(SlotChanged(term=1, node="t0", change="replied", fence=1))
    assert pool.slot("t0").phase == GRANTED, "nor does the fold end it"


@pytest.mark.parametrize("fence", [0, 1, 2])
def test_the_fold_gives_no_fence_twice(fence: int) -> None:
    pool = Pool("t0", "t1")
    granted(pool.lend("a", "t0"))
    granted(pool.lend("b", "t0", "t1"))
    assert pool.change("t0", 1, "replied").events
    pool.decide(SlotChanged(term=1, node="t0", change="granted", fence=fence, holder="r.1"))
    assert pool.slot("t0").phase == FREE
    pool.decide(SlotChanged(term=1, node="t0", change="granted", fence=3, holder="r.1"))
    assert pool.slot("t0").phase == GRANTED, "with the next one it would have been lent"


def test_a_deposed_leaders_grant_is_void() -> None:
    pool = Pool("t0")
    pool.lead("c-2", 2)
    event = SlotChanged(term=1, node="t0", change="granted", fence=1, holder="r.1", request="a")
    pool.decide(event, replica="c-1", term=1)
    assert pool.slot("t0").phase == FREE
    pool.decide(msgspec.structs.replace(event, term=2), replica="c-2", term=2)
    assert pool.slot("t0").phase == GRANTED


def test_an_abandoned_lease_is_not_lent_before_it_ended() -> None:
    pool = Pool("t0")
    assert pool.change("t0", granted(pool.lend("a", "t0")).fence, "abandoned").events
    refused = pool.lend("b", "t0")
    assert refused.reason == "unsure"
    assert "t0 must first be seen idle" in refused.refused
    assert pool.lend("a", "t0").reason == "unsure", "not to its own request either"
    assert pool.change("t0", 1, "abandoned") == Decision()
    assert pool.change("t0", 1, "idle", holder="").events
    assert granted(pool.lend("b", "t0")).fence == 2


def test_a_decoding_request_was_admitted() -> None:
    pool = Pool("t0")
    granted(pool.lend("a", "t0"))
    pool.change("t0", 1, "confirmed")
    refused = pool.change("t0", 1, "refused_before_admission")
    assert refused.reason == "phase"
    assert "does not fit: node t0 is decoding" in refused.refused
    assert pool.change("t0", 1, "registered").reason == "phase"
    assert pool.change("t0", 1, "cancelled").events


def test_unknown_and_drained_nodes_are_named() -> None:
    pool = Pool("t0")
    refused = pool.lend("a", "t7", "t8")
    assert refused.reason == "not_registered"
    assert "no decode node t7, t8 is known; known: t0" in refused.refused
    assert "a router names them" in Pool().lend("a", "t0").refused
    assert pool.change("t7", 1, "replied").reason == "not_registered"
    drain = DrainSlot(space=SPACE, node="t0", drained=True, who="ana")
    granted(pool.lend("a", "t0"))
    assert pool.do(drain).events
    assert pool.do(drain) == Decision()
    assert pool.change("t0", 1, "replied").events, "a lease that runs goes on to its end"
    assert pool.lend("b", "t0").reason == "drained"
    pool.decide(SlotChanged(term=1, node="t0", change="granted", fence=2, holder="r.1"))
    assert pool.slot("t0").phase == FREE, "nor does the fold lend it"
    assert pool.do(DrainSlot(space=SPACE, node="t0", drained=False)).events
    assert granted(pool.lend("b", "t0")).fence == 2
    assert pool.do(DrainSlot(space=SPACE, node="t9", drained=True)).reason == "not_registered"


def test_a_node_has_one_name_and_keeps_its_address_while_it_is_lent() -> None:
    pool = Pool("t0")

    def name(one: SlotNode) -> Decision:
        return pool.do(NameSlot(space=SPACE, node=one, who="q"))

    assert name(node("t0")) == Decision(), "known already"
    refused = name(node("t9", port=5_000))
    assert refused.reason == "address"
    assert "Call t9 t0 on every router" in refused.refused
    granted(pool.lend("a", "t0"))
    moved = node("t0", port=6_000, profile="glm5")
    assert name(moved).reason == "in_use"
    pool.change("t0", 1, "replied")
    assert name(moved).events
    assert pool.slot("t0").node == moved
    assert name(node("t9", port=5_000)).events, "the old address is free for another name"


def test_at_the_bound_a_drained_node_makes_room_and_its_fences_stay_given() -> None:
    pool = Pool(*(f"t{number}" for number in range(SLOT_NODES_MAX)))
    granted(pool.lend("a", "t0"))
    pool.change("t0", 1, "replied")
    more = NameSlot(space=SPACE, node=node(f"t{SLOT_NODES_MAX}"), who="r")
    assert pool.do(more).reason == "too_many"
    pool.do(DrainSlot(space=SPACE, node="t0", drained=True))
    assert pool.do(more).events
    assert "t0" not in pool.space.slots.nodes
    assert len(pool.space.slots.nodes) == SLOT_NODES_MAX
    assert granted(pool.lend("b", "t1")).fence == 2


def test_slots_survive_a_snapshot() -> None:
    pool = Pool("t0", "t1")
    granted(pool.lend("a", "t0", session="s"))
    pool.change("t0", 1, "confirmed")
    again = decode(encode(pool.state))
    assert digest(again) == digest(pool.state)
    assert again.spaces[SPACE].slots == pool.space.slots
    again.spaces[SPACE].slots.nodes["t0"].fence = 7
    assert digest(again) != digest(pool.state)


def test_behind_a_hole_no_slot_is_free_and_no_fence_given_twice() -> None:
    pool = Pool("t0", "t1")
    granted(pool.lend("a", "t0"))
    cross_hole(pool.state, pool.seq + 1, 500)
    pool.seq = 500
    assert violations(pool.state) == []
    assert pool.lend("b", "t0", "t1").reason == "unsure"
    assert pool.change("t0", 1, "replied").reason == "fence", "it may be lent to another by now"
    for name in ("t0", "t1"):
        assert pool.change(name, pool.slot(name).fence, "idle", holder="").events
    assert granted(pool.lend("b", "t0")).fence == 501
    assert pool.space.slots.ended == {"lost": 1}


def test_a_node_of_a_ledger_that_lost_its_beginning_must_be_seen_idle() -> None:
    pool = Pool()
    assert pool.do(NameSlot(space=SPACE, node=node("t0"), who="r", above=900)).events
    assert pool.lend("a", "t0").reason == "unsure"
    pool.change("t0", 900, "idle", holder="")
    assert granted(pool.lend("a", "t0")).fence == 901
    known = NameSlot(space=SPACE, node=node("t0", port=7_000), who="r", above=950)
    pool.change("t0", 901, "replied")
    pool.do(known)
    assert pool.slot("t0").phase == FREE, "it was known: only its address is new"


def test_when_to_ask_again_follows_from_how_long_leases_last() -> None:
    pool = Pool("t0")
    slots = pool.space.slots
    assert retry_after_ms(slots, ["t0"], NOW_MS) == RETRY_UNKNOWN_MS
    granted(pool.lend("a", "t0"))
    pool.seq += 400  # each position is 10 ms later
    pool.change("t0", 1, "replied")
    assert slots.lasted_ms == 4_010.0
    granted(pool.lend("b", "t0"))
    at_ms = pool.slot("t0").granted_ms
    assert retry_after_ms(slots, ["t0"], at_ms + 1_000) == 3_010.0
    assert retry_after_ms(slots, ["t0"], at_ms + 9_000) == RETRY_MIN_MS
    assert retry_after_ms(slots, ["t9"], at_ms) == RETRY_UNKNOWN_MS
