"""Nodes and decisions: joining, leaving, closing, terms, policies."""

from __future__ import annotations

import pytest
from tests.unit.core.support import Writer, joined, requested, retained, started

from kvferry.core.apply import apply_batch, quarantine
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import (
    Checkpoint,
    LeaderElected,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PolicySet,
    TurnEnded,
)
from kvferry.core.invariants import violations
from kvferry.core.state import QUARANTINED_MAX, State
from kvferry.ids import ROUTER_SPACE


def left(node: str, epoch: int = 1, incarnation: str = "", term: int = 1) -> NodeLeft:
    return NodeLeft(term=term, node=node, incarnation=incarnation or f"{node}-a", epoch=epoch)


def test_joining_tells_all_about_the_node() -> None:
    ledger, _ = started("p0")
    node = ledger.node("p0")
    assert (node.status, node.epoch, node.address) == ("joined", 1, "127.0.0.1:7000")
    assert (node.block_size, node.backends, node.blocks, node.role) == (
        16,
        ("tcp",),
        1_000,
        "kv_both",
    )


def test_a_lost_node_ends_its_offers_and_its_transfers_as_target() -> None:
    ledger, (p0, d0) = started("p0", "d0")
    p0.write(retained("p"), requested("as-target", source="d0"))
    d0.write(retained("d"), requested("as-source", source="p0"))
    (applied,) = ledger.decide(left("p0"))
    assert applied.offers == ("p",)
    assert set(ledger.space.offers) == {"d"}
    transfers = ledger.space.transfers
    assert (transfers["as-target"].phase, transfers["as-target"].reason) == ("failed", "node_left")
    assert transfers["as-source"].phase == "open"
    assert p0.write(retained("void")) == []
    assert ledger.state.dropped == {"void": 1}
    p0.join()
    assert ledger.node("p0").status == "joined"
    p0.write(retained("again"))
    assert violations(ledger.state) == []


def test_node_left_matches_only_one_record() -> None:
    ledger, (p0,) = started("p0")
    p0.join()
    ledger.decide(left("p0", epoch=1), left("p0", incarnation="other"), left("nobody"))
    assert ledger.node("p0").status == "joined"
    assert ledger.space.totals.strays == {"node_left": 3}
    ledger.decide(left("p0", epoch=2), left("p0", epoch=2))
    assert ledger.node("p0").status == "left"
    assert ledger.space.totals.repeated == {"node_left": 1}


def test_a_clean_stop_ends_everything_of_the_node() -> None:
    ledger, (p0,) = started("p0")
    p0.write(retained("o"), requested("t"))
    applied = p0.write(NodeClosed(incarnation="p0-a"), retained("after"))
    assert [one.offers for one in applied] == [("o",)]
    assert ledger.node("p0").status == "closed"
    assert ledger.space.transfers["t"].reason == "node_left"
    assert ledger.space.offers == {}


def test_a_stop_of_another_process_is_a_stray() -> None:
    ledger, (p0,) = started("p0")
    p0.write(NodeClosed(incarnation="other"))
    assert ledger.node("p0").status == "joined"


def test_a_new_process_ends_what_the_last_one_had() -> None:
    ledger, (p0,) = started("p0")
    p0.write(retained("o"), requested("t"))
    (applied,) = Writer(ledger, "p0", incarnation="p0-b").join()
    assert applied.offers == ("o",)
    assert ledger.space.transfers["t"].reason == "node_left"
    assert ledger.node("p0").superseded == ["p0-a"]


def test_a_new_epoch_keeps_offers_until_the_inventory() -> None:
    ledger, (p0,) = started("p0")
    p0.write(retained("o"))
    p0.join()
    assert set(ledger.space.offers) == {"o"}


def test_a_repeated_or_mismatched_join_is_not_believed() -> None:
    ledger, (p0,) = started("p0")
    assert p0.write(joined("p0-a", 1)) == []
    assert p0.write(joined("p0-b", 1)) == []
    assert ledger.node("p0").incarnation == "p0-a"
    assert ledger.space.totals.repeated == {"node_joined": 1}
    assert ledger.space.totals.strays == {"node_joined": 1}


def test_routers_join_under_their_own_space() -> None:
    state = State()
    entries = (
        Entry(NodeJoined(incarnation="i", epoch=1, address="", block_size=0)),
        Entry(TurnEnded(request="t", ttft_ms=3.0)),
    )
    batch = Batch(
        space=ROUTER_SPACE,
        node="r0",
        incarnation="i",
        epoch=1,
        lane="facts",
        seq=1,
        entries=entries,
    )
    assert len(apply_batch(state, batch, Position(1, 1))) == 2
    assert state.spaces[ROUTER_SPACE].totals.turns == 1


def test_decisions_of_a_lower_term_are_void() -> None:
    ledger, (p0,) = started("p0")
    ledger.lead("c-2", term=2)
    assert ledger.decide(left("p0", term=1), replica="c-1", term=1) == []
    assert ledger.lead("c-3", term=2) == []
    assert (ledger.space.term, ledger.space.leader) == (2, "c-2")
    assert ledger.node("p0").status == "joined"
    assert ledger.state.dropped == {"deposed": 2}
    assert len(ledger.decide(left("p0", term=2), replica="c-2", term=2)) == 1
    assert p0.write() == []


def test_another_replica_cannot_decide_under_a_term_it_did_not_win() -> None:
    ledger, _ = started("p0")
    assert ledger.decide(left("p0", term=1), replica="c-2", term=1) == []


def test_a_decision_beyond_a_truncated_election_stands_for_it() -> None:
    ledger, _ = started("p0")
    ledger.decide(PolicySet(term=7, version=1, mode="paused"), replica="c-9", term=7)
    assert (ledger.space.term, ledger.space.leader, ledger.space.mode) == (7, "c-9", "paused")


def test_how_costs_are_weighed_is_the_leaders_word() -> None:
    ledger, _ = started("p0")
    assert [ledger.space.weighs(unsaid) for unsaid in (True, False)] == [True, False]
    for term, cost, weighs in ((3, "off", False), (4, "learned", True)):
        ledger.decide(LeaderElected(term=term, replica="c-2", cost=cost), replica="c-2", term=term)
        assert [ledger.space.weighs(unsaid) for unsaid in (True, False)] == [weighs] * 2
    ledger.decide(PolicySet(term=7, version=1, mode="on"), replica="c-9", term=7)
    assert ledger.space.cost == "", "of a leader whose election is lost nothing is known"


def test_policies_by_version() -> None:
    ledger, _ = started("p0", "d0")
    ledger.decide(PolicySet(term=1, version=1, mode="paused", node="p0"))
    assert (ledger.space.mode_of("p0"), ledger.space.mode_of("d0")) == ("paused", "on")
    ledger.decide(PolicySet(term=1, version=3, mode="observe"))
    ledger.decide(PolicySet(term=1, version=2, mode="on"))
    assert (ledger.space.mode_of("p0"), ledger.space.mode_of("d0")) == ("observe", "observe")
    assert ledger.space.policy_version == 3
    ledger.decide(PolicySet(term=1, version=4, mode="observe", node="p0"))
    assert ledger.space.modes == {}


def test_the_highest_checkpoint_is_remembered() -> None:
    ledger, _ = started()
    for position in (5, 3):
        ledger.decide(Checkpoint(term=1, position=position, digest="", fingerprint="", object="o"))
    assert ledger.space.checkpoint == 5


@pytest.mark.parametrize("event", [requested("t"), LeaderElected(term=9, replica="x")])
def test_an_event_in_a_wrong_lane_is_a_stray(event: object) -> None:
    ledger, (p0,) = started("p0")
    if isinstance(event, LeaderElected):
        p0.write(event)
    else:
        ledger.decide(event)  # type: ignore[arg-type]
    assert sum(ledger.space.totals.strays.values()) == 1
    assert (ledger.space.term, ledger.space.transfers) == (1, {})


def test_the_quarantine_counts_all_and_keeps_the_last() -> None:
    state = State()
    for seq in range(1, QUARANTINED_MAX + 11):
        quarantine(state, seq, "kvf.s.n.facts", "not msgpack")
    assert (state.quarantined_total, state.position) == (QUARANTINED_MAX + 10,) * 2
    assert [state.quarantined[0].seq, state.quarantined[-1].seq] == [11, QUARANTINED_MAX + 10]
