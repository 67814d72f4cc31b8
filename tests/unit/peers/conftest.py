"""Fixtures of the peer protocol's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.peers.puller_bench import Bench
from tests.unit.peers.support import (
    BOUND_S,
    KEY,
    TARGET_LIFE,
    ManualClock,
    Source,
    identity,
    serve,
)

from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.server import PeerServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Source:
    """A source; on the manual clock in tests that use that."""
    uses_clock = "clock" in request.fixturenames
    return Source(clock=request.getfixturevalue("clock") if uses_clock else None)


@pytest.fixture
def server(source: Source) -> Iterator[PeerServer]:
    server = serve(source)
    yield server
    server.close()


@pytest.fixture
def client() -> Iterator[PeerClient]:
    client = PeerClient(KEY, identity("p0", TARGET_LIFE), connect_s=BOUND_S)
    yield client
    client.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()
