"""A coordinator that starts while the ledger's cluster cannot answer waits until it can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.chaos.processes import BOUND_S, wait_until
from tests.chaos.replicas import Replicas
from tests.chaos.servers import NatsCluster

from kvferry.cli.checks.server import jetstream_api
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ports.log import FACTS_STREAM

OPERATORS_BYTES = 3 * 1024**3
"""More than the ledger takes of itself: shrunk to that, the stream would lose its oldest events."""


def test_a_coordinator_without_a_quorum_waits_and_leaves_an_operators_bounds(
    tmp_path: Path,
) -> None:
    async def made(ledger: JetStreamLedger) -> None:
        await ledger.ensure_streams(replicas=3, facts_max_bytes=OPERATORS_BYTES)

    async def bounds(ledger: JetStreamLedger) -> dict[str, Any]:
        info = await jetstream_api(ledger, f"STREAM.INFO.{FACTS_STREAM}")
        return {key: info["config"][key] for key in ("max_bytes", "num_replicas")}

    with (
        NatsCluster(tmp_path / "nats", 3) as cluster,
        Replicas(cluster.url, tmp_path) as replicas,
    ):
        replicas.use(made)
        # One that led the stream would answer for it a while longer.
        led = cluster.leader()
        first = next(one for one in cluster.servers if one is not led)
        others = [one for one in cluster.servers if one is not first]
        for server in others:
            assert server.process is not None
            server.process.kill()
        late = replicas.start("c-a", url=first.url, wait_s=10 * BOUND_S)
        wait_until(lambda: "trying again" in late.said(), "it says that it waits")
        assert not late.crashed, late.said()
        assert "serves" not in late.said()
        for server in others:
            cluster.start(server)
        replicas.wait_serving("c-a")
        assert replicas.use(bounds) == {"max_bytes": OPERATORS_BYTES, "num_replicas": 3}


def test_a_coordinator_without_a_quorum_gives_up_when_told_to(tmp_path: Path) -> None:
    with (
        NatsCluster(tmp_path / "nats", 3) as cluster,
        Replicas(cluster.url, tmp_path) as replicas,
    ):
        first, *others = cluster.servers
        for server in others:
            assert server.process is not None
            server.process.kill()
        late = replicas.start("c-a", url=first.url, wait_s=1)
        wait_until(lambda: not late.running, "it has given up")
        assert "error: " in late.said()
        assert "Traceback" not in late.said()
