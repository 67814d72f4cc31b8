"""A disk that really fills up under the ledger. Needs the right to mount; skipped without."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.ledger.support import eventually, read_all, within

from kvferry.errors import LedgerUnavailable
from kvferry.ledger import append, embedded
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import connect
from kvferry.ledger.streams import MIB
from kvferry.ports.log import FACTS_STREAM

FACTS = "kvf.s.p0.facts"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = os.geteuid() == 0 and shutil.which("mount") is not None
    if mounted:
        command = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("may not mount a small disk here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_after_a_full_disk_it_goes_on_by_itself_and_nothing_acknowledged_is_lost(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "WATCH_EVERY_S", 0.1)
    monkeypatch.setattr(embedded, "RESTART_FREE_BYTES_MIN", 8 * MIB)
    monkeypatch.setattr(append, "ACK_WAIT_S", 0.2)
    monkeypatch.setattr(append, "STALL_MAX_S", 0.5)
    free = [10_000 * MIB]
    server = EmbeddedServer(small_disk / "store", free=lambda _: free[0])
    with server:
        ledger = await connect(server.url, name="test")
        sizes = {"facts_max_bytes": 32 * MIB, "blocks_max_bytes": MIB, "objects_max_bytes": MIB}
        await ledger.ensure_streams(**sizes)
        filler = small_disk / "filler"
        filler.write_bytes(bytes(40 * MIB))
        free[0] = 0
        acknowledged = 0

        async def write_on() -> None:
            nonlocal acknowledged
            for i in range(1000):
                await ledger.append(FACTS, b"%04d" % i + os.urandom(50_000), message_id=str(i))
                acknowledged += 1

        with pytest.raises(LedgerUnavailable):
            await write_on()
        await eventually(lambda: server.health() != "", "the server says so")
        filler.unlink()
        free[0] = 40 * MIB
        await eventually(lambda: server.restarts == 1, "the restart")
        await eventually(ledger.connected, "the connection is back")
        await within(ledger.append(FACTS, b"after", message_id="after"))
        stored = [message.data[:4] for message in await read_all(ledger, FACTS_STREAM)]
        assert 0 < acknowledged < 1000
        assert stored[:acknowledged] == [b"%04d" % i for i in range(acknowledged)]
        assert stored[-1] == b"afte"
        await within(ledger.close())
    assert len(asyncio.all_tasks()) == 1
