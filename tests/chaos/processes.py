"""Processes that a scenario kills, freezes and lets go on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

BOUND_S = 60.0
"""Far beyond what any condition takes on a busy machine."""


class Process:
    """One process with its output in a file of its own.

    Args:
        command: what to run.
        log: where its output goes; appended to.
        within: a prefix that puts it somewhere else, as ``ip netns exec NAME``.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        within: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log = log
        self._ended = False
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*within, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | dict(env or {}),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def crashed(self) -> bool:
        """Whether it ended though nobody asked it to."""
        return not self.running and not self._ended

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen one go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as kill -9 does, and wait until the kernel has closed its sockets."""
        self._ended = True
        self._process.kill()
        self._process.wait(BOUND_S)

    def terminate(self) -> int:
        """Ask it to stop; its exit code."""
        self._ended = True
        self._process.terminate()
        return self._process.wait(BOUND_S)

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self.running:
            self._process.kill()
            self._process.wait(BOUND_S)

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")


def wait_until(condition: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
    """Return once the condition holds; fail when it does not within the bound."""
    until = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < until, f"not within {bound_s:g} s: {what}"
        time.sleep(0.02)
