"""A real nats-server with the ledger's streams, for the tests that want one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of the test's own."""
    with EmbeddedServer(tmp_path / "store") as running:
        yield running


@pytest.fixture
async def ledger(server: EmbeddedServer) -> AsyncIterator[JetStreamLedger]:
    """A connection to it; the streams are made."""
    connection = await connect(server.url, name="test")
    await connection.ensure_streams()
    yield connection
    await connection.close()
