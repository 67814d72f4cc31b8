"""Backends by name: found, made, left out with a reason, and mistakes named."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from kvferry.errors import BackendUnavailable, ConfigError
from kvferry_backends import registry
from kvferry_backends.tcp.backend import TcpBackend


def broken(options: dict[str, object]) -> TcpBackend:
    raise BackendUnavailable("no such device on this machine")


@pytest.fixture
def more_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real tcp backend beside three that cannot work here, each in its own way."""
    real = registry._entries(registry.GROUP)
    for name, value in (
        ("nolib", "a_library_that_is_not_here.backend:Backend"),
        ("noattr", "kvferry_backends.layout:NotThere"),
        ("nodevice", f"{__name__}:broken"),
    ):
        real[name] = EntryPoint(name, value, registry.GROUP)
    monkeypatch.setattr(EntryPoint, "load", load_here(EntryPoint.load))
    monkeypatch.setattr(registry, "_entries", lambda group: real)


def load_here(load: object) -> object:
    """Tests are not importable by name, so ``nodevice`` is loaded by hand."""

    def loading(entry: EntryPoint) -> object:
        return broken if entry.name == "nodevice" else load(entry)  # type: ignore[operator]

    return loading


def test_tcp_is_found_through_its_entry_point() -> None:
    assert "tcp" in registry.names()
    backend = registry.create("tcp", {"connections": 3})
    assert isinstance(backend, TcpBackend)
    backend.close()


def test_an_unknown_name_says_what_is_installed() -> None:
    with pytest.raises(ConfigError, match=r"'rdma'.*tcp"):
        registry.create("rdma")


def test_asking_for_names_imports_no_backend() -> None:
    script = (
        "import sys; from kvferry_backends import registry; registry.names(); "
        "sys.exit('kvferry_backends.tcp.backend' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.usefixtures("more_backends")
def test_what_cannot_work_is_left_out_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    reasons: dict[str, str] = {}
    usable = registry.create_usable(
        ["nolib", "nodevice", "tcp", "noattr"], {"tcp": {"connections": 1}}, left_out=reasons
    )
    assert [backend.name for backend in usable] == ["tcp"]
    assert set(reasons) == {"nolib", "nodevice", "noattr"}
    assert "a_library_that_is_not_here" in reasons["nolib"]
    assert "device" in reasons["nodevice"]
    assert "NotThere" in reasons["noattr"]
    assert all(f"backend {name} is left out" in caplog.text for name in reasons)
    usable[0].close()


def test_mistakes_raise_and_close_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(TcpBackend, "close", lambda self: closed.append(self.name))
    with pytest.raises(ConfigError, match="rdma"):
        registry.create_usable(["tcp", "rdma"])
    assert closed == ["tcp"]
    with pytest.raises(ConfigError, match="twice"):
        registry.create_usable(["tcp", "tcp"])
    with pytest.raises(ConfigError, match="nccl"):
        registry.create_usable(["tcp"], {"nccl": {}})
