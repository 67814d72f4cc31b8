"""A command in a pseudo-terminal: what it shows, what is typed, and what it leaves behind."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from pathlib import Path
from typing import Any

from tests.unit.cli.processes import BOUND_S, COMMAND, environment, eventually

ROWS, COLUMNS = 50, 160
ALTERNATE, NORMAL, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs `kvferry ...` as the foreground process of a terminal of its own."""

    def __init__(self, home: Path, *arguments: str, **more: str) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.before = self.settings()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(home, TERM="xterm-256color", **more),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.raw = ""
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, name="terminal")
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(BOUND_S)
        self._ended.set()
        self._reader.join(BOUND_S)
        os.close(self._ours)
        os.close(self._theirs)

    def settings(self) -> list[Any]:
        """How the terminal is set."""
        return termios.tcgetattr(self._theirs)

    def shown(self, since: int = 0) -> str:
        """What was shown from a place in :attr:`raw` on, without what steers the terminal."""
        return _STEERING.sub("", self.raw[since:])

    def until(self, text: str, since: int = 0) -> None:
        eventually(
            lambda: text in self.shown(since) or self.process.poll() is not None, f"{text!r} shown"
        )
        assert text in self.shown(since), self.shown()[-3_000:]

    def type(self, keys: str) -> int:
        """Type; returns the place in :attr:`raw` where what comes after it begins."""
        at = len(self.raw)
        os.write(self._ours, keys.encode())
        return at

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """The exit code, once all that was shown was read."""
        code = self.process.wait(BOUND_S)
        self._ended.set()
        self._reader.join(BOUND_S)
        return code

    def _read(self) -> None:
        pending = b""
        while True:
            ready, _, _ = select.select([self._ours], [], [], 0.05)
            if ready:
                pending += os.read(self._ours, 65_536)
                try:
                    self.raw += pending.decode()
                    pending = b""
                except UnicodeDecodeError:
                    continue
            elif self._ended.is_set():
                return
