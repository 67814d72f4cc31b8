"""Starts and ends: nothing is left behind, and a ledger without a coordinator can be read."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.unit.cli.processes import COMMAND, Up, environment, eventually, kvferry, running_up
from tests.unit.cli.support import SPACE, converse
from typer.testing import CliRunner

from kvferry.cli import replicas, statefile
from kvferry.cli.checks import beats
from kvferry.cli.checks.server import jetstream_api
from kvferry.cli.main import app
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import connect


def server_of(up: Up) -> int:
    """The process id of its nats-server."""
    children = Path(f"/proc/{up.process.pid}/task").glob("*/children")
    (pid,) = {int(pid) for one in children for pid in one.read_text().split()}
    return pid


def listens(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


def gone(pid: int) -> bool:
    return not statefile.process_born(pid)


def test_a_stopped_up_leaves_its_ledger_and_nothing_else(tmp_path: Path) -> None:
    home, store = tmp_path / "home", tmp_path / "store"
    with running_up(home, "--store", str(store)) as first:
        server = server_of(first)
        asyncio.run(fill(first.url))
        assert first.end(signal.SIGTERM) == 0
        assert gone(server)
        assert not listens(first.url)
        assert not (home / "kvferry" / "up.json").exists()
        assert list(store.glob("*.ports")) == []
        assert "Traceback" not in first.stderr.read_text()
    with running_up(home, "--store", str(store)) as second:
        found = json.loads(kvferry(home, "events", "--kind", "retained", "--json").stdout)
        assert found["space"] == SPACE
        assert second.end(signal.SIGINT) == 0


def test_a_killed_up_takes_its_server_along_and_is_not_believed_to_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_up(home) as up:
        server = server_of(up)
        up.end(signal.SIGKILL)
        eventually(lambda: gone(server), "the server ends with its parent")
        assert (home / "kvferry" / "up.json").exists()
        with running_up(home) as again:
            assert json.loads((home / "kvferry" / "up.json").read_text())["url"] == again.url


def test_a_second_up_does_not_take_the_others_state_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_up(home) as first, running_up(home, "--store", str(tmp_path / "b")) as second:
        assert "give them --nats " + second.url in second.stderr.read_text()
        empty = kvferry(home, "status", "--nats", second.url)
        assert "nothing has been recorded yet" in empty.stdout
        assert "no node has joined yet: start an engine" in empty.stdout
        assert second.end() == 0
        state = json.loads((home / "kvferry" / "up.json").read_text())
        assert state["url"] == first.url


async def fill(url: str) -> None:
    ledger = await connect(url, name="test")
    try:
        await ledger.ensure_streams()
        await converse(ledger)
    finally:
        await ledger.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[str]:
    """A ledger with a conversation and no coordinator."""
    with EmbeddedServer(tmp_path / "alone") as server:
        asyncio.run(fill(server.url))
        yield server.url


def test_without_a_coordinator_the_ledger_itself_is_read(
    alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "LISTEN_S", 0.2)
    monkeypatch.setattr(beats, "LISTEN_S", 0.2)
    status = CliRunner().invoke(app, ["status", "--nats", alone])
    assert status.exit_code == 0
    assert "no coordinator is running" in status.stdout
    assert "folded from the ledger" in status.stdout
    assert f"space {SPACE}" in status.stdout
    assert "transfers: 0 in flight, 1 done" in status.stdout
    doctor = CliRunner().invoke(app, ["doctor", "--nats", alone, "--json"])
    assert doctor.exit_code == 1
    levels = {one["check"]: one["level"] for one in json.loads(doctor.stdout)["checks"]}
    assert (levels["coordinator"], levels["node p0"], levels["peer p0"]) == ("fail", "fail", "fail")
    paused = CliRunner().invoke(app, ["pause", "--nats", alone])
    assert paused.exit_code == 3
    assert "kvferry coordinator" in paused.stderr


def test_a_coordinator_alone_serves_a_server_and_stops_cleanly(alone: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = subprocess.Popen(
        [*COMMAND, "coordinator", "--nats", alone, "--replica", "c-test"],
        env=environment(home),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("c-test serves" in line for line in process.stderr)
        found = json.loads(kvferry(home, "status", "--nats", alone, "--json").stdout)
        assert [one["replica"] for one in found["coordinators"]] == ["c-test"]
        assert found["source"] == "coordinator"
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[1]
        assert process.returncode == 0
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.communicate()


def test_a_coordinator_creates_what_is_missing_and_keeps_an_operators_bounds(
    tmp_path: Path,
) -> None:
    async def bounds(url: str, first: bool) -> dict[str, Any]:
        ledger = await connect(url, name="test")
        try:
            if first:
                await ledger.ensure_streams(facts_max_bytes=7_000_000, facts_max_age_s=1_000)
                await jetstream_api(ledger, "STREAM.DELETE.KVF_BLOCKS")
            await ledger.create_missing()
            found = {
                name: (await jetstream_api(ledger, f"STREAM.INFO.{name}"))["config"]
                for name in ("KVF", "KVF_BLOCKS")
            }
        finally:
            await ledger.close()
        return found

    with EmbeddedServer(tmp_path / "store") as server:
        configs = asyncio.run(bounds(server.url, True))
        assert configs["KVF"]["max_bytes"] == 7_000_000
        assert configs["KVF"]["max_age"] == 1_000 * 10**9
        assert configs["KVF_BLOCKS"]["max_bytes"] > 0
        assert asyncio.run(bounds(server.url, False)) == configs


def test_a_closed_pipe_is_no_error(alone: str, tmp_path: Path) -> None:
    events = subprocess.Popen(
        [*COMMAND, "events", "--nats", alone, "--from", "1"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert events.stdout is not None
    assert events.stderr is not None
    events.stdout.close()
    assert events.stderr.read() == b""
    assert events.wait(60) == 0
    events.stderr.close()
