"""TileRT's own sender in a process of its own, for what its protocol does when used as it is."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.tilert.nodes import STOP_S, DecodeNode, environment

WITHIN_S = 120.0


class OriginalSender:
    """Sends one request's KV after the other. ``stop`` ends and reaps it."""

    def __init__(self, log: Path, model: str = "dsv32", dtype: str = "fp8_ds_mla") -> None:
        self._model = {"model": model, "dtype": dtype}
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tilert.original_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(),
            text=True,
            start_new_session=True,
        )

    def send(self, host: str, port: int, rid: str, seq_len: int, value: float) -> str:
        """What became of it: ``sent``, or why not. Blocks until it is known."""
        given = {"host": host, "port": port, "rid": rid, "seq_len": seq_len, "value": value}
        pipes: Any = self._process
        pipes.stdin.write(json.dumps({**given, **self._model}) + "\n")
        pipes.stdin.flush()
        limit = threading.Timer(WITHIN_S, self._process.kill)
        limit.start()
        try:
            line = pipes.stdout.readline()
        finally:
            limit.cancel()
        if not line:
            raise RuntimeError("the sender's process ended; see its log")
        outcome: str = json.loads(line)["outcome"]
        return outcome

    def send_to(self, node: DecodeNode, rid: str, value: float, seq_len: int = 70) -> str:
        return self.send("127.0.0.1", node.ctrl_port, rid, seq_len, value)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(STOP_S)
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()
