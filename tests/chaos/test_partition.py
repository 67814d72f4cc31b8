"""The leading coordinator is cut off without a word, and joined again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.load import Load, failed, outcomes
from tests.chaos.load_process import IDLE
from tests.chaos.netns import Namespace, NotPermitted
from tests.chaos.replicas import Replicas, in_order
from tests.chaos.servers import NatsCluster

from kvferry.core.events import NodeLeft


@pytest.fixture
def apart() -> Iterator[Namespace]:
    namespace = Namespace(0)
    try:
        namespace.__enter__()
    except NotPermitted as error:
        pytest.skip(str(error))
    yield namespace
    namespace.__exit__(None, None, None)


def test_a_leader_that_is_cut_off_is_replaced_and_stands_by(
    apart: Namespace, tmp_path: Path
) -> None:
    with (
        NatsCluster(tmp_path / "nats", 1, host=apart.host) as cluster,
        Replicas(cluster.url, tmp_path) as replicas,
    ):
        replicas.start("c-far", within=apart.within)
        replicas.wait_serving("c-far")
        with Load(cluster.url, tmp_path / "load.log") as load:
            assert replicas.leader() == "c-far"
            replicas.start("c-near")
            replicas.wait_serving("c-far", "c-near")
            asked = load.report().asked
            apart.cut()
            assert replicas.leader(but="c-far") == "c-near"
            for verb in ("pause", "resume"):
                assert "error" not in replicas.query("c-near", verb, node=IDLE)
            asked += load.report().asked
            apart.heal()
            replicas.announced(
                lambda heard: "c-far" in heard and not heard["c-far"].leader, "c-far stands by"
            )
            refused = replicas.query("c-far", "pause", node=IDLE)
            assert (refused["reason"], refused["leader"]) == ("not_leader", "c-near")
            asked += load.report().asked
        history = replicas.decisions()
        assert in_order(history) == ["c-far", "c-near"]
        assert not [one for one in history if isinstance(one.event, NodeLeft)]
        assert len(asked) > 100
        assert not failed(asked), outcomes(asked)
