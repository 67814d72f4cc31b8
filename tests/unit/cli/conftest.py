"""Every test of the command line has a state folder of its own and no foreign settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.cli.processes import BOUND_S, Engines, Up, running_up

from kvferry.cli import replicas
from kvferry.cli.checks import beats


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("KVFERRY_NATS", "KVFERRY_KEY_FILE", "KVFERRY_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a coordinator, it is heard, however long this machine stands still."""
    if "up" in request.fixturenames:
        monkeypatch.setattr(replicas, "LISTEN_S", BOUND_S)
        monkeypatch.setattr(beats, "LISTEN_S", BOUND_S)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    # The engines beat on a thread of this busy process, and are not what is tested here.
    patient = ("--silent-after-s", "300")
    with running_up(tmp_path_factory.mktemp("up"), *patient) as served, Engines(served.url):
        yield served
