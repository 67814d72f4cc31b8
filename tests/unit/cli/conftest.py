"""Every test of the command line has a state folder of its own and no foreign settings."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("KVFERRY_NATS", "KVFERRY_KEY_FILE", "KVFERRY_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return home
