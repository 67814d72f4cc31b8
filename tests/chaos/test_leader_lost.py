"""The leading coordinator is killed, frozen, or late, while plans are asked."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.load import Load, failed, outcomes
from tests.chaos.load_process import ANSWERED, IDLE
from tests.chaos.replicas import Replicas, in_order
from tests.chaos.servers import NatsCluster
from tests.e2e.relay import Relay

from kvferry.core.events import NodeLeft, PolicySet


def test_a_killed_leader_is_replaced_and_no_plan_fails(three: Replicas, tmp_path: Path) -> None:
    with Load(three.url, tmp_path / "load.log") as load:
        first = three.leader()
        three.processes[first].kill()
        second = three.leader(but=first)
        for verb in ("pause", "resume"):
            assert "error" not in three.query(second, verb, node=IDLE)
        report = load.report()
    history = three.decisions()
    assert in_order(history) == [first, second]
    assert [one.replica for one in history if isinstance(one.event, PolicySet)] == [second] * 2
    assert not [one for one in history if isinstance(one.event, NodeLeft)]
    assert len(report.asked) > 50
    assert not failed(report.asked), outcomes(report.asked)


def test_a_frozen_leader_goes_on_and_decides_nothing_more(three: Replicas, tmp_path: Path) -> None:
    with Load(three.url, tmp_path / "load.log") as load:
        first = three.leader()
        three.processes[first].freeze()
        # It finds this as soon as it goes on, before it hears that somebody else leads.
        three.tell(first, "observe", node=IDLE, who="late")
        second = three.leader(but=first)
        assert "error" not in three.query(second, "resume", node=IDLE)
        three.processes[first].thaw()
        three.announced(
            lambda heard: first in heard and not heard[first].leader, f"{first} stands by"
        )
        refused = three.query(first, "observe", node=IDLE)
        assert (refused["reason"], refused["leader"]) == ("not_leader", second)
        report = load.report()
    history = three.decisions()
    assert in_order(history) == [first, second]
    assert "late" not in [one.event.who for one in history if isinstance(one.event, PolicySet)]
    assert not failed(report.asked), outcomes(report.asked)


def test_a_write_that_was_late_on_its_way_is_void(server: NatsCluster, tmp_path: Path) -> None:
    relay = Relay(server.servers[0].port)
    try:
        with Replicas(server.url, tmp_path) as replicas:
            replicas.start("c-far", url=f"nats://{relay.address}")
            replicas.wait_serving("c-far")
            with Load(server.url, tmp_path / "load.log") as load:
                assert replicas.leader() == "c-far"
                replicas.start("c-near")
                replicas.wait_serving("c-far", "c-near")
                # It hears the question and decides; its write waits on the way to the ledger.
                relay.hold_requests()
                replicas.tell("c-far", "observe", node=IDLE, who="late")
                relay.wait_held()
                assert replicas.leader(but="c-far") == "c-near"
                for verb in ("pause", "resume"):
                    assert "error" not in replicas.query("c-near", verb, node=IDLE)
                relay.carry()
                replicas.announced(
                    lambda heard: "c-far" in heard and not heard["c-far"].leader, "c-far stands by"
                )
                refused = replicas.query("c-far", "observe", node=IDLE)
                assert (refused["reason"], refused["leader"]) == ("not_leader", "c-near")
                assert ANSWERED in outcomes(load.report().asked)
            history = replicas.decisions()
            assert in_order(history) == ["c-far", "c-near"]
            whose = [one.event.who for one in history if isinstance(one.event, PolicySet)]
            assert whose == ["test", "test"]
    finally:
        relay.close()
