"""Nodes get their plans whatever becomes of single replicas: frozen, restarted one by one."""

from __future__ import annotations

import time
from pathlib import Path

from tests.chaos.conftest import NAMES
from tests.chaos.load import Load, failed, outcomes
from tests.chaos.processes import wait_until
from tests.chaos.replicas import Replicas, in_order

from kvferry.core.events import NodeLeft


def test_a_frozen_replica_keeps_nobody_waiting(three: Replicas, tmp_path: Path) -> None:
    with Load(three.url, tmp_path / "load.log") as load:
        leader = three.leader()
        # Freezing who answers now is what costs most.
        asked = load.report().asked
        wait_until(lambda: asked.extend(load.report().asked) or len(asked) > 20, "plans are asked")
        chosen = asked[-1].replica
        three.processes[chosen].freeze()
        frozen_s = time.monotonic()
        during = []
        wait_until(
            lambda: during.extend(load.report().asked) or len(during) > 200, "plans are asked on"
        )
        assert not failed(during), outcomes(during)
        later = [one for one in during if one.at > frozen_s]
        assert later
        assert chosen not in {one.replica for one in later}
        three.processes[chosen].thaw()
        three.wait_serving(*NAMES)
        assert not failed(load.report().asked)
    assert in_order(three.decisions())[0] == leader


def test_a_rolling_restart_fails_no_plan(three: Replicas, tmp_path: Path) -> None:
    with Load(three.url, tmp_path / "load.log") as load:
        asked = load.report().asked
        for name in NAMES:
            assert three.processes[name].terminate() == 0, three.said()
            three.start(name)
            three.wait_serving(name)
            asked += load.report().asked
        three.wait_serving(*NAMES)
        asked += load.report().asked
        assert load.report().states == {"d0": "joined", "p0": "joined", "x0": "joined"}
    assert len(asked) > 200
    assert not failed(asked), outcomes(asked)
    history = three.decisions()
    in_order(history)
    assert not [one for one in history if isinstance(one.event, NodeLeft)]
    for process in three.processes.values():
        assert "Traceback" not in process.said()
