"""Ctrl-C in mid-flight: no process, no file, no shared memory and no socket is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

LINE_S = 300.0
STOP_S = 60.0
DEMO = "import typer; from kvferry_connectors.demo.cli import command; typer.run(command)"


def processes() -> dict[int, tuple[int, str]]:
    """Every living process: its parent, and its start time as a name that is never used again."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in ("Z", "X"):
                found[int(entry.name)] = (int(fields[1]), fields[19])
    return found


def descendants(root: int) -> set[tuple[int, str]]:
    """All processes below ``root``, each as (pid, start time)."""
    living = processes()
    family = {root}
    while grown := {pid for pid, (parent, _) in living.items() if parent in family} - family:
        family |= grown
    return {(pid, living[pid][1]) for pid in family - {root} if pid in living}


def shared_memory() -> set[str]:
    """Segments of Python's; semaphores cannot be told from those of other tests."""
    return {entry.name for entry in Path("/dev/shm").glob("psm_*")}


def wait_for_line(output: Iterator[str], words: str) -> list[str]:
    """The lines up to the one that holds ``words``; the process' end ends it too."""
    lines = []
    deadline = time.monotonic() + LINE_S
    for line in output:
        lines.append(line)
        if words in line or time.monotonic() > deadline:
            break
    return lines


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files whose name is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kvf") as made:
        yield Path(made)


@pytest.mark.parametrize(
    ("words", "number", "least"),
    [
        ("starting three vLLM engines", signal.SIGINT, 3),
        ("A1:", signal.SIGTERM, 10),
    ],
)
def test_nothing_is_left(
    tmp_path: Path, temporary: Path, words: str, number: signal.Signals, least: int
) -> None:
    interrupt(tmp_path, temporary, words, number, least=least)


def interrupt(
    tmp_path: Path,
    temporary: Path,
    words: str,
    number: signal.Signals,
    *,
    least: int,
    options: Sequence[str] = (),
) -> None:
    """Start the demo, wait for a line with these words and so many processes, and send a signal:
    nothing is left."""
    folder = tmp_path / "demo"
    before = shared_memory()
    demo = subprocess.Popen(
        [sys.executable, "-u", "-c", DEMO, "--dir", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        assert demo.stdout is not None
        lines = wait_for_line(demo.stdout, words)
        assert words in lines[-1], "".join(lines)
        family = descendants(demo.pid)
        deadline = time.monotonic() + LINE_S
        while len(family) < least and time.monotonic() < deadline:
            time.sleep(0.05)
            family = descendants(demo.pid)
        assert len(family) >= least
        demo.send_signal(number)
        rest = demo.stdout.read()
        assert demo.wait(STOP_S) == 130, rest
    finally:
        demo.kill()
        demo.wait()
    assert "everything is stopped" in rest
    living = processes()
    assert [pid for pid, born in family if living.get(pid, (0, ""))[1] == born] == []
    assert not folder.exists()
    assert list(temporary.iterdir()) == []
    assert nobodys(before) == set()


def nobodys(before: set[str]) -> set[str]:
    """Shared memory that came since and that no living process uses.

    Other tests use some at the same time. What they use is mapped, and what their killed processes
    leave is taken away soon; what stays is ours.
    """
    deadline = time.monotonic() + STOP_S
    while found := {name for name in shared_memory() - before if not mapped(name)}:
        if time.monotonic() > deadline:
            return found
        time.sleep(0.2)
    return set()


def mapped(name: str) -> bool:
    """Whether a living process uses a piece of shared memory."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"/dev/shm/{name}" in (entry / "maps").read_text():
                    return True
            except OSError:
                continue
    return False
