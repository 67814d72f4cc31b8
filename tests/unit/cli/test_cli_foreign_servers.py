"""Doctor and the others against servers that are not as they should be."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.processes import eventually
from typer.testing import CliRunner

from kvferry.cli import guard
from kvferry.cli.main import app
from kvferry.ledger.jetstream import connect
from kvferry.ledger.server_process import find_binary

runner = CliRunner()


@contextmanager
def nats_server(folder: Path, *arguments: str) -> Iterator[str]:
    """A plain nats-server on a free port; its url."""
    listening = ("-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(folder))
    process = subprocess.Popen(
        [find_binary(), *listening, "-sd", str(folder / "store"), *arguments],
        stderr=subprocess.DEVNULL,
    )
    ports = folder / f"nats-server_{process.pid}.ports"
    try:
        eventually(lambda: ports.exists() and bool(ports.read_text()), "nats-server listens")
        yield json.loads(ports.read_text())["nats"][0]
    finally:
        process.terminate()
        process.wait(30)


def checks(url: str, code: int) -> dict[str, Any]:
    result = runner.invoke(app, ["doctor", "--json", "--nats", url])
    assert result.exit_code == code, result.output
    return {one["check"]: one for one in json.loads(result.stdout)["checks"]}


def test_a_server_without_jetstream_is_named_with_the_cure(tmp_path: Path) -> None:
    with nats_server(tmp_path) as url:
        found = checks(url, guard.TROUBLE)["jetstream"]
        assert found["level"] == "fail"
        assert "-js" in found["cure"]
        status = runner.invoke(app, ["status", "--nats", url])
        assert status.exit_code == guard.UNREACHABLE
        assert "Traceback" not in status.output


def test_missing_and_foreign_streams_are_named(tmp_path: Path) -> None:
    async def occupy(url: str) -> None:
        ledger = await connect(url, name="test")
        body = json.dumps({"name": "KVF", "subjects": ["orders.>"], "storage": "memory"})
        await ledger.request("$JS.API.STREAM.CREATE.KVF", body.encode(), 5.0)
        await ledger.close()

    with nats_server(tmp_path, "-js") as url:
        found = checks(url, guard.TROUBLE)
        assert found["stream KVF"]["level"] == "fail"
        assert "kvferry coordinator" in found["stream KVF"]["cure"]
        events = runner.invoke(app, ["events", "--nats", url])
        assert events.exit_code == guard.UNREACHABLE
        assert "kvferry up" in events.stderr
        asyncio.run(occupy(url))
        foreign = checks(url, guard.TROUBLE)["stream KVF"]
        assert "orders.>" in foreign["text"]
        coordinator = runner.invoke(app, ["coordinator", "--nats", url])
        assert coordinator.exit_code == guard.UNREACHABLE
        assert "orders.>" in coordinator.stderr


def test_credentials_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nats_server(tmp_path, "-js", "--user", "op", "--pass", "secret") as url:
        refused = runner.invoke(app, ["status", "--nats", url])
        assert refused.exit_code == guard.UNREACHABLE
        assert "credentials" in refused.stderr
        assert checks(url, guard.UNREACHABLE)["nats"]["level"] == "fail"
        monkeypatch.setenv("KVFERRY_NATS_USER", "op")
        monkeypatch.setenv("KVFERRY_NATS_PASSWORD", "secret")
        assert checks(url, guard.TROUBLE)["jetstream"]["level"] == "ok"


def test_a_password_in_the_url_is_not_shown(tmp_path: Path) -> None:
    with nats_server(tmp_path, "-js", "--user", "op", "--pass", "secret") as url:
        secret = url.replace("nats://", "nats://op:secret@")
        assert "jetstream" in checks(secret, guard.TROUBLE)
        for command in (["doctor"], ["status"], ["doctor", "--json"]):
            result = runner.invoke(app, [*command, "--nats", secret])
            assert "secret" not in result.output
