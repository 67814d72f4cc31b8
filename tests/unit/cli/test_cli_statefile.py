"""The state file belongs to one living process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kvferry.cli import statefile
from kvferry.cli.context import DEFAULT_URL, find_ledger
from kvferry.cli.statefile import UpState


def mine(url: str = "nats://127.0.0.1:1") -> UpState:
    pid = os.getpid()
    return UpState(url=url, pid=pid, born=statefile.process_born(pid), store="/store")


def test_a_living_up_is_found_and_its_file_removed_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "up.json"
    assert statefile.write(mine(), path) is None
    assert statefile.load(path) == mine()
    assert path.stat().st_mode & 0o777 == 0o600
    statefile.remove(os.getpid() + 1, path)
    assert path.exists()
    statefile.remove(os.getpid(), path)
    assert list(path.parent.iterdir()) == []


def test_what_a_dead_process_left_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "up.json"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = statefile.process_born(child.pid)
    state = UpState(url="nats://127.0.0.1:2", pid=child.pid, born=born, store="/store")
    assert statefile.write(state, path) is None
    assert statefile.load(path) == state
    other = statefile.write(mine(), path)
    assert other == state, "a second up leaves the first one's file alone"
    child.communicate()
    assert statefile.load(path) is None
    assert statefile.write(mine(), path) is None


def test_a_reused_pid_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "up.json"
    state = UpState(url="u", pid=os.getpid(), born="1", store="/store")
    statefile.write(state, path)
    assert statefile.load(path) is None


def test_rubbish_in_the_file_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "up.json"
    for text in ("", "{", "[]", '{"url": 1}'):
        path.write_text(text)
        assert statefile.load(path) is None


def test_the_ledger_is_the_option_then_the_running_up_then_the_default(
    state_home: Path,
) -> None:
    assert find_ledger(None).url == DEFAULT_URL
    statefile.write(mine("nats://127.0.0.1:7"))
    assert (state_home / "kvferry" / "up.json").exists()
    assert find_ledger(None).url == "nats://127.0.0.1:7"
    assert find_ledger("nats://elsewhere:1").url == "nats://elsewhere:1"
