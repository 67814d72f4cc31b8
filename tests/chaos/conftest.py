"""Three coordinators on one ledger, each a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.replicas import Replicas
from tests.chaos.servers import NatsCluster

NAMES = ("c-a", "c-b", "c-c")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsCluster]:
    """One nats-server."""
    with NatsCluster(tmp_path / "nats", 1) as cluster:
        yield cluster


@pytest.fixture
def three(server: NatsCluster, tmp_path: Path) -> Iterator[Replicas]:
    """Three coordinators that all serve."""
    with Replicas(server.url, tmp_path) as replicas:
        for name in NAMES:
            replicas.start(name)
        replicas.wait_serving(*NAMES)
        yield replicas
