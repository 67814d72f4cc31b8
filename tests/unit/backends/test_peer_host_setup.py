"""What peer_host is given, and what it needs of the system before anything is read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.contract.pools import Pool

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry_backends import identity
from kvferry_backends.identity import own_identity
from kvferry_backends.peer_host import system
from kvferry_backends.peer_host.backend import PeerHostBackend
from kvferry_backends.peer_host.options import parse_options


def registered(**options: object) -> None:
    """Make a backend, show it a pool, and close it."""
    backend = PeerHostBackend(options)
    backend.register(Pool(1, [8]).regions, lambda *call: True)
    backend.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow_every_reader": True}, "unknown option allow_every_reader; known are allow_any"),
        ({"allow_any_reader": "yes"}, "allow_any_reader"),
        ({"threads": 17}, "threads 17 is not 0 to 16"),
        ({"call_bytes": 1}, "call_bytes 1 is not 4096"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PeerHostBackend(options)


def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (4, 2), (64, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=cores: set(range(n)))
        assert parse_options({}).threads_per_read == threads
    assert parse_options({"threads": 3}).threads_per_read == 3


def test_yama_is_told_only_when_asked(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    yama = tmp_path / "ptrace_scope"
    yama.write_text("1\n")
    monkeypatch.setattr(system, "_YAMA", yama)
    told: list[bool] = []
    monkeypatch.setattr(system, "admit_any_reader", lambda: told.append(True))
    registered()
    assert not told
    assert "allow_any_reader: true" in caplog.text
    registered(allow_any_reader=True)
    assert told
    yama.write_text("0\n")
    registered(allow_any_reader=True)
    assert len(told) == 1


def test_without_yama_the_option_cannot_be_granted() -> None:
    if system.ptrace_scope() or Path("/proc/sys/kernel/yama").exists():
        system.admit_any_reader()
    else:
        with pytest.raises(BackendError, match="allow_any_reader"):
            system.admit_any_reader()


def test_own_identity_is_what_proc_shows() -> None:
    mine = own_identity()
    assert mine.pid == os.getpid()
    assert re.fullmatch(r"pid:\[\d+\]", mine.namespace)


def test_a_proc_of_another_namespace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity.os, "getpid", lambda: 1)
    with pytest.raises(BackendUnavailable, match="mount the /proc"):
        own_identity()
