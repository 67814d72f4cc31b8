"""Logs to test: the same suite runs on the one in memory and on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.unit.ledger.support import RawServer

from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ledger.memory import MemoryLog


@pytest.fixture
def raw_server(tmp_path: Path) -> Iterator[RawServer]:
    server = RawServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture(params=["memory", "jetstream"])
async def log(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[MemoryLog | JetStreamLedger]:
    if request.param == "memory":
        memory = MemoryLog()
        yield memory
        await memory.close()
        return
    with EmbeddedServer(tmp_path / "store") as server:
        ledger = await connect(server.url, name="test")
        await ledger.ensure_streams()
        yield ledger
        await ledger.close()
