"""A real nats-server with the ledger's streams, for the tests that want one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kvferry.ledger import jsapi
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect

PATIENCE_S = 30.0
"""For one answer of a server whose disk is busy with what other tests write."""


@pytest.fixture(autouse=True)
def patient_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that makes its streams, or asks for their bounds, fails for no slow disk."""
    monkeypatch.setattr(jsapi, "CALL_WAIT_S", PATIENCE_S)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server of the test's own."""
    with EmbeddedServer(tmp_path / "store") as running:
        yield running


@pytest.fixture
async def ledger(server: EmbeddedServer) -> AsyncIterator[JetStreamLedger]:
    """A connection to it; the streams are made."""
    connection = await connect(server.url, name="test", timeout_s=PATIENCE_S)
    await connection.ensure_streams()
    yield connection
    await connection.close()
