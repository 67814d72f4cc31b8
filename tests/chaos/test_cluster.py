"""Three nats-servers that keep each stream three times: the stream's leader is killed."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.conftest import NAMES
from tests.chaos.lanes import whole
from tests.chaos.load import Load, failed, outcomes
from tests.chaos.load_process import IDLE
from tests.chaos.processes import wait_until
from tests.chaos.replicas import Replicas, in_order
from tests.chaos.servers import NatsCluster

from kvferry.core.events import NodeLeft, PolicySet
from kvferry.core.state import JOINED


def test_the_leader_of_the_streams_is_killed_and_then_the_coordinators_leader(
    tmp_path: Path,
) -> None:
    with (
        NatsCluster(tmp_path / "nats", 3) as cluster,
        Replicas(cluster.url, tmp_path, stream_replicas=3) as replicas,
    ):
        for nth, name in enumerate(NAMES):
            replicas.start(name, url=cluster.url_from(nth))
        replicas.wait_serving(*NAMES)
        lost = cluster.leader()
        assert lost.process is not None
        # Who asks for plans keeps its connection; some replicas lose theirs.
        with Load(cluster.url_from(cluster.servers.index(lost) + 1), tmp_path / "load.log") as load:
            lost.process.kill()
            replicas.decide(NAMES, "pause", node=IDLE)
            cluster.start(lost)
            lost.wait_healthy()
            replicas.wait_serving(*NAMES)
            asked = load.report().asked
            assert not failed(asked), outcomes(asked)
            leader = replicas.leader()
            replicas.processes[leader].kill()
            replicas.decide([name for name in NAMES if name != leader], "resume", node=IDLE)
            wait_until(
                lambda: set(load.report().states.values()) == {"joined"}, "every node is joined"
            )
            asked = load.report().asked
            assert not failed(asked), outcomes(asked)
        history = replicas.decisions()
        assert in_order(history)[-1] != leader
        assert [one.event.mode for one in history if isinstance(one.event, PolicySet)] == [
            "paused",
            "on",
        ]
        assert not [one for one in history if isinstance(one.event, NodeLeft)]
        (space,) = whole(replicas).spaces.values()
        assert {node.status for node in space.nodes.values()} <= {JOINED, "closed"}
