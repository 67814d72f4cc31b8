"""Handles of sources in other processes, which tests kill, freeze and resume."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.kinds import KINDS, Kind

ANSWER_S = 120.0
END_S = 30.0
_ROOT = Path(__file__).resolve().parents[2]


class SourceProcess:
    """A process that serves pools on command."""

    def __init__(self, kind: Kind) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.source_process", str(KINDS.index(kind))],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._pending = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def serve(
        self,
        blocks: int,
        widths: Sequence[int],
        seed: str = "source",
        *,
        gap: int = 0,
        permit: str = "allow",
        **options: object,
    ) -> Source:
        """A pool of the pattern ``seed``, served; see :mod:`tests.contract.permits`."""
        answer = self.ask(
            do="serve",
            blocks=blocks,
            widths=list(widths),
            gap=gap,
            seed=seed,
            permit=permit,
            options=options,
        )
        return Source(self, answer["number"], bytes.fromhex(answer["description"]))

    def ask(self, **command: object) -> dict[str, Any]:
        """Have a command carried out."""
        self.begin(**command)
        return self.answer()

    def begin(self, **command: object) -> None:
        """Send a command, whose :meth:`answer` comes later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest command without one."""
        until = time.monotonic() + ANSWER_S
        while True:
            while b"\n" not in self._pending:
                self._pending += self._some(until)
            line, _, self._pending = self._pending.partition(b"\n")
            if line.startswith(b"answer "):
                found: dict[str, Any] = json.loads(line.removeprefix(b"answer "))
                assert "raised" not in found, found["raised"]
                return found

    def _some(self, until: float) -> bytes:
        assert self._process.stdout is not None
        left_s = max(0.0, until - time.monotonic())
        ready, _, _ = select.select([self._process.stdout], [], [], left_s)
        assert ready, f"the source process said nothing within {ANSWER_S} s"
        some = os.read(self._process.stdout.fileno(), 1 << 16)
        assert some, "the source process ended"
        return some

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(END_S)

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, whatever state it is in."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self.resume()
            self._process.stdin.close()
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process.stdin.close()
        self._process.stdout.close()


@dataclass(frozen=True)
class Source:
    """One pool of a source process."""

    process: SourceProcess
    number: int
    description: bytes

    def digest(self) -> str:
        """Of all its memory."""
        return str(self.process.ask(do="digest", number=self.number)["sha256"])

    def block(self, block: int) -> bytes:
        return bytes.fromhex(self.process.ask(do="block", number=self.number, block=block)["bytes"])

    def close(self) -> None:
        """Stop serving it; the process goes on."""
        self.process.ask(do="close", number=self.number)
