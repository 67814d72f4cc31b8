"""Child processes of the demo: nothing of a group survives, whatever it does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.folder import RunFolder, run_folder
from kvferry_connectors.demo.process import Child, group_members, is_tracker
from kvferry_connectors.demo.together import all_of, together

FAMILY = """
import os, signal, sys, time
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""
WITH_SHARED_MEMORY = """
import time
from multiprocessing import shared_memory
held = shared_memory.SharedMemory(create=True, size=4096)
print(held.name, flush=True)
time.sleep(600)
"""


async def started(tmp_path: Path, program: str, *args: str) -> tuple[Child, str]:
    """A child that said its first word."""
    child = Child(
        "child",
        [sys.executable, "-c", program, *args],
        env=dict(os.environ),
        log=tmp_path / "child.log",
        talk=True,
    )
    await child.start()
    assert child.process.stdout is not None
    async with asyncio.timeout(30):
        return child, (await child.process.stdout.readline()).decode().strip()


@pytest.mark.parametrize("kind", ["obedient", "deaf"])
async def test_stop_leaves_no_descendant(tmp_path: Path, kind: str) -> None:
    child, _ = await started(tmp_path, FAMILY, kind)
    group = child.process.pid
    assert len(group_members(group)) == 2
    await child.stop(0.5)
    assert group_members(group) == []
    assert child.process.returncode in (-signal.SIGTERM, -signal.SIGKILL)


async def test_a_killed_process_leaves_no_shared_memory(tmp_path: Path) -> None:
    child, name = await started(tmp_path, WITH_SHARED_MEMORY)
    segment = Path("/dev/shm") / name.lstrip("/")
    assert segment.exists()
    await child.kill()
    assert group_members(child.process.pid) == []
    assert not segment.exists()


def test_who_has_no_command_line_yet_is_spared_as_a_tracker() -> None:
    """A process that ended and was not waited for has none any more, as one that begins."""
    child = subprocess.Popen(["true"])
    # Its exit, not an empty line: who is being started has none for a moment, and then one.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_tracker(child.pid)
    assert not is_tracker(os.getpid()), "the control"
    assert child.wait() == 0


async def test_a_process_that_ended_is_told_with_its_last_words(tmp_path: Path) -> None:
    program = "import sys; print('the cause', file=sys.stderr); sys.exit(3)"
    child, _ = await started(tmp_path, program)
    assert await child.wait(30) == 3
    with pytest.raises(DemoError, match=r"(?s)ended with code 3.*the cause") as failed:
        child.check()
    assert failed.value.log == tmp_path / "child.log"
    await child.stop(1.0)


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    child = Child("it", ["/no/such/program"], env={}, log=tmp_path / "log")
    with pytest.raises(DemoError, match="it cannot be started"):
        await child.start()
    await child.stop(1.0)


async def test_the_first_failure_is_raised_as_it_was() -> None:
    ended = asyncio.Event()

    async def fails() -> None:
        raise DemoError("this one")

    async def lasts() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(DemoError, match="this one"):
        await together(lasts(), fails())
    assert ended.is_set()


async def test_all_are_stopped_although_one_fails() -> None:
    done = []

    async def fails() -> None:
        raise DemoError("this one")

    async def works() -> None:
        await asyncio.sleep(0)
        done.append(True)

    with pytest.raises(DemoError, match="this one"):
        await all_of(fails(), works())
    assert done == [True]


def test_a_run_that_went_well_leaves_no_files(tmp_path: Path) -> None:
    parent = tmp_path / ".demo"
    with run_folder(parent, keep=False) as run:
        assert run.key.stat().st_mode & 0o077 == 0
        assert len(run.key.read_text().strip()) == 64
        temporary = run.temporary
        assert temporary.is_dir()
    assert not parent.exists()
    assert not temporary.exists()


def test_a_run_that_failed_leaves_its_logs_only(tmp_path: Path) -> None:
    def fail(run: RunFolder) -> None:
        run.log("p0").write_text("why")
        (run.path / "ledger").mkdir()
        raise DemoError("failed")

    with pytest.raises(DemoError), run_folder(tmp_path, keep=False) as run:
        fail(run)
    assert [entry.name for entry in run.path.iterdir()] == ["logs"]
    assert run.log("p0").read_text() == "why"


def test_an_interrupted_run_leaves_nothing_and_spares_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(asyncio.CancelledError), run_folder(tmp_path, keep=False):
        raise asyncio.CancelledError
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_keep_keeps_everything_but_sockets(tmp_path: Path) -> None:
    with run_folder(tmp_path, keep=True) as run:
        (run.path / "ledger").mkdir()
    assert (run.path / "ledger").is_dir()
    assert run.key.exists()
    assert not run.temporary.exists()


def test_sockets_get_a_short_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with run_folder(tmp_path / "demo", keep=False) as run:
        assert len(str(run.temporary)) < 48
