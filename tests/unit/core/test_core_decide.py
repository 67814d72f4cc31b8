"""Decisions: what is stored and what is sent for each command."""

from __future__ import annotations

from tests.unit.core.support import SPACE, Ledger, Writer, retained, started

from kvferry.core.commands import Heard, NodeSilent, RecordCheckpoint, SetPolicy, TakeLead
from kvferry.core.decide import Decision, decide
from kvferry.core.effects import SendControl
from kvferry.core.events import Checkpoint, LeaderElected, NodeClosed, NodeLeft, PolicySet
from kvferry.core.messages import Control
from kvferry.core.state import HELD_BATCHES_MAX, State

NOW_MS = 1_000_000


def heard(ledger: Ledger, writer: Writer, *, lagging: bool = False) -> list[Control]:
    command = Heard(
        space=SPACE,
        node=writer.name,
        incarnation=writer.incarnation,
        epoch=writer.epoch,
        lagging=lagging,
    )
    decision = decide(ledger.state, command, NOW_MS)
    assert decision.events == ()
    assert all(one.node == writer.name for one in decision.effects)
    return [one.control for one in decision.effects]


def silent(node: str, incarnation: str, epoch: int) -> NodeSilent:
    return NodeSilent(space=SPACE, node=node, incarnation=incarnation, epoch=epoch, silent_ms=6_200)


def store(ledger: Ledger, decision: Decision) -> None:
    ledger.decide(*[event for space, event in decision.events if space == SPACE])


def test_taking_the_lead_raises_the_term() -> None:
    ledger, _ = started()
    decision = decide(ledger.state, TakeLead(space=SPACE, replica="c-2"), NOW_MS)
    assert decision.events == ((SPACE, LeaderElected(term=2, replica="c-2", cost="learned")),)
    fresh = decide(State(), TakeLead(space="new", replica="c-2", cost="off"), NOW_MS)
    assert fresh.events == (("new", LeaderElected(term=1, replica="c-2", cost="off")),)
    above = decide(ledger.state, TakeLead(space=SPACE, replica="c-2", above=40), NOW_MS)
    assert above.events == ((SPACE, LeaderElected(term=41, replica="c-2", cost="learned")),)


def test_a_silent_node_is_given_up_once() -> None:
    ledger, _ = started("p0")
    decision = decide(ledger.state, silent("p0", "p0-a", 1), NOW_MS)
    (_, event), *rest = decision.events
    assert rest == []
    assert event == NodeLeft(term=1, node="p0", incarnation="p0-a", epoch=1, why="silent for 6.2 s")
    store(ledger, decision)
    assert decide(ledger.state, silent("p0", "p0-a", 1), NOW_MS) == Decision()


def test_silence_of_another_record_is_moot() -> None:
    ledger, (p0,) = started("p0")
    p0.join()
    for command in (
        silent("p0", "p0-a", 1),
        silent("p0", "other", 2),
        silent("nobody", "x", 1),
        NodeSilent(space="none", node="p0", incarnation="p0-a", epoch=2, silent_ms=1),
    ):
        assert decide(ledger.state, command, NOW_MS) == Decision()


def test_an_unknown_node_is_asked_to_resync_unless_the_state_lags() -> None:
    ledger, (p0,) = started("p0")
    stranger = Writer(ledger, "d9")
    assert [one.verb for one in heard(ledger, stranger)] == ["resync"]
    assert heard(ledger, stranger, lagging=True) == []
    p0.epoch = 2
    assert [one.verb for one in heard(ledger, p0)] == ["resync"]
    assert heard(ledger, Writer(Ledger(), "p0", "p0-new"))[0].incarnation == "p0-new"


def test_a_node_that_left_closed_or_is_fenced_is_asked_to_resync() -> None:
    ledger, (left, closed, fenced) = started("left", "closed", "fenced")
    store(ledger, decide(ledger.state, silent("left", "left-a", 1), NOW_MS))
    closed.write(NodeClosed(incarnation="closed-a"))
    fenced.batch(retained("lost"))
    for number in range(HELD_BATCHES_MAX + 1):
        fenced.write(retained(f"o{number}"))
    for writer in (left, closed, fenced):
        (control,) = heard(ledger, writer)
        assert control.verb == "resync"
        assert control.incarnation == writer.incarnation
        writer.join()
        assert heard(ledger, writer) == []


def test_a_superseded_process_is_told_that_it_is_a_duplicate() -> None:
    ledger, (first,) = started("p0")
    second = Writer(ledger, "p0", incarnation="p0-b")
    second.join()
    (control,) = heard(ledger, first)
    assert (control.verb, control.incarnation) == ("duplicate", "p0-a")
    assert "p0-b" in control.why
    assert heard(ledger, second) == []


def test_a_heartbeat_of_the_last_epoch_is_ignored() -> None:
    ledger, (p0,) = started("p0")
    p0.join()
    p0.epoch = 1
    assert heard(ledger, p0) == []


def test_the_policy_in_force_is_repeated_with_each_heartbeat() -> None:
    ledger, (p0, d0) = started("p0", "d0")
    assert heard(ledger, p0) == []  # nothing was ever set
    decision = decide(ledger.state, SetPolicy(space=SPACE, mode="paused", node="p0"), NOW_MS)
    control = Control(verb="policy", mode="paused", version=1, incarnation="p0-a")
    assert decision.events == ((SPACE, PolicySet(term=1, version=1, mode="paused", node="p0")),)
    assert decision.effects == (SendControl(space=SPACE, node="p0", control=control),)
    store(ledger, decision)
    assert heard(ledger, p0) == [control]
    assert heard(ledger, d0)[0].mode == "on"


def test_a_policy_for_the_space_reaches_all_joined_nodes() -> None:
    ledger, (_, d0) = started("p0", "d0")
    d0.write(NodeClosed(incarnation="d0-a"))
    first = decide(ledger.state, SetPolicy(space=SPACE, mode="paused", who="ana"), NOW_MS)
    assert [one.node for one in first.effects] == ["p0"]
    store(ledger, first)
    again = decide(ledger.state, SetPolicy(space=SPACE, mode="paused", who="ana"), NOW_MS)
    assert (again.events, again.effects) == ((), first.effects)
    back = decide(ledger.state, SetPolicy(space=SPACE, mode="on"), NOW_MS)
    assert back.events == ((SPACE, PolicySet(term=1, version=2, mode="on")),)


def test_a_policy_for_the_space_overrides_those_of_nodes() -> None:
    ledger, _ = started("p0", "d0")
    store(ledger, decide(ledger.state, SetPolicy(space=SPACE, mode="paused", node="p0"), NOW_MS))
    decision = decide(ledger.state, SetPolicy(space=SPACE, mode="on"), NOW_MS)
    assert len(decision.events) == 1
    store(ledger, decision)
    assert ledger.space.mode_of("p0") == "on"


def test_wrong_policies_are_refused_with_the_cure() -> None:
    ledger, _ = started("p0")
    for command, words in (
        (SetPolicy(space="none", mode="on"), SPACE),
        (SetPolicy(space=SPACE, mode="off"), "on, paused, observe"),
        (SetPolicy(space=SPACE, mode="on", node="p9"), "p0"),
    ):
        decision = decide(ledger.state, command, NOW_MS)
        assert (decision.events, decision.effects) == ((), ())
        assert words in decision.refused
    assert "start an engine" in decide(State(), SetPolicy(space="s", mode="on"), 0).refused


def test_a_checkpoint_carries_the_term() -> None:
    ledger, _ = started()
    command = RecordCheckpoint(
        space=SPACE, position=9, digest="d", fingerprint="f", object="checkpoint-9"
    )
    ((_, event),) = decide(ledger.state, command, NOW_MS).events
    assert event == Checkpoint(
        term=1, position=9, digest="d", fingerprint="f", object="checkpoint-9"
    )
