"""`kvferry bench link` as processes, and what must be left of them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

BOUND_S = 120.0
SMALL = ("--pool-bytes", "2MiB", "--block-bytes", "64KiB", "--seconds", "0.02")
_COMMAND = [sys.executable, "-m", "kvferry.cli", "bench", "link"]


def environment(home: Path) -> dict[str, str]:
    """Ours, with a configuration folder of its own and without a key."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("KVFERRY_")}
    return env | {"XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home)}


class BenchLink:
    """One command under way."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*_COMMAND, *arguments],
            env=environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line on stderr."""
        assert self.process.stderr is not None
        ready, _, _ = select.select([self.process.stderr], [], [], BOUND_S)
        assert ready
        return self.process.stderr.readline()

    def end(self, how: int = 0) -> tuple[int, str, str]:
        """Send a signal, if any, and wait: exit code, stdout and stderr."""
        if how:
            self.process.send_signal(how)
        out, err = self.process.communicate(timeout=BOUND_S)
        return self.process.returncode, out, err

    def close(self) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)


def run(home: Path, *arguments: str) -> tuple[int, str, str]:
    """A whole command: exit code, stdout and stderr."""
    return BenchLink(home, *arguments).end()


def children(pid: int) -> list[int]:
    """Processes that this one has started and not buried."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether the process still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + BOUND_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        pause.wait(0.02)
    return True
