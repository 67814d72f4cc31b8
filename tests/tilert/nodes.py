"""TileRT decode nodes for tests: the real server in a process of its own, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.tilert.playback import FOLDER

from kvferry_connectors.demo.tilert import package
from kvferry_connectors.demo.tilert.serving import PORTS

START_S = 120.0
STOP_S = 30.0
WAIT_S = 60.0
_POLL_S = 0.02
_ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Of a process of the tests that uses the package, on loopback."""
    ours = package.environment()
    return {**os.environ, **ours, "PYTHONPATH": f"{ours['PYTHONPATH']}{os.pathsep}{_ROOT}"}


@dataclass(frozen=True)
class NodeOptions:
    """What a node is started with.

    Attributes:
        model: a profile of the package: ``dsv32``, ``glm5`` or ``glm5_2``.
        dtype: the MLA cache's: ``fp8_ds_mla`` or ``bfloat16``.
        spy: arguments of :class:`tests.tilert.spy.SpyEngine` beside its folder; ``None`` takes
            the stub engine that the package ships.
        keep: arguments of ``kvferry tilert-node``: the server is started by it, and its engine is
            a :class:`tests.tilert.playback.PlaybackEngine` of the node's folder.
    """

    model: str = "dsv32"
    dtype: str = "fp8_ds_mla"
    max_seq_len: int = 1024
    spy: dict[str, Any] | None = None
    keep: tuple[str, ...] = ()


class DecodeNode:
    """One decode server. ``stop`` ends and reaps it, however it fares."""

    def __init__(self, folder: Path, options: NodeOptions) -> None:
        self.folder = folder
        self.options = options
        folder.mkdir(parents=True, exist_ok=True)
        if options.spy is not None:
            (folder / "spy.json").write_text(json.dumps(options.spy))
        if options.keep:
            (folder / "keep.json").write_text(json.dumps(options.keep))
        self.ctrl_port = self.http_port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Start the process, after a stop on the same ports as before; see :meth:`wait_ready`."""
        (self.folder / PORTS).unlink(missing_ok=True)
        options = self.options
        argv = [
            *(sys.executable, "-m", "tests.tilert.node_child", str(self.folder)),
            *("--engine", "stub", "--model", options.model, "--transport", "nixl"),
            *("--pd-buffer-device", "cpu", "--max-seq-len", str(options.max_seq_len)),
            *("--kv-cache-dtype", options.dtype),
            *("--ctrl-port", str(self.ctrl_port), "--http-port", str(self.http_port)),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,  # Its end is the sign that we are gone.
                stdout=log,
                stderr=log,
                env={**environment(), FOLDER: str(self.folder)},
                cwd=_ROOT,
                start_new_session=True,
            )

    def wait_ready(self) -> DecodeNode:
        """Wait until ``/health`` answers."""
        deadline = time.monotonic() + START_S
        told = self.folder / PORTS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the decode server ended:\n{self.tail()}")
            if told.exists():
                self.ctrl_port, self.http_port = json.loads(told.read_text())
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"{self.url}/health", trust_env=False).status_code == 200:
                        return self
            time.sleep(_POLL_S)
        raise TimeoutError(f"the decode server does not answer:\n{self.tail()}")

    def status(self) -> dict[str, Any]:
        """``/decode_status``: whether it is busy, and with which rid."""
        answer: dict[str, Any] = httpx.get(
            f"{self.url}/decode_status", timeout=WAIT_S, trust_env=False
        ).json()
        return answer

    def injected(self, number: int) -> dict[str, Any]:
        """What the spy engine's ``number``-th inject got; waits for it."""
        import torch

        path = self.folder / f"inject-{number}.pt"
        self.wait_for(path.exists, f"inject {number}")
        whole: dict[str, Any] = torch.load(path)
        return whole

    def pause(self) -> None:
        """Let the spy engine's generation wait after its first tokens."""
        (self.folder / "pause").touch()

    def resume(self) -> None:
        (self.folder / "pause").unlink(missing_ok=True)

    def decoding(self) -> bool:
        """Whether the spy engine generates now."""
        return (self.folder / "decoding").exists()

    def wait_for(self, condition: Any, what: str) -> None:
        """Wait until ``condition`` holds."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.tail()}"
            assert self._process.poll() is None, f"the decode server ended:\n{self.tail()}"
            time.sleep(_POLL_S)

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        text = (self.folder / "log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def kill(self) -> None:
        """As a crash: no farewell, whatever it works on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def freeze(self) -> None:
        """Stop its process without ending it; :meth:`thaw` lets it go on."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Ask it to end, and wait until it has."""
        self._process.terminate()
        self._process.wait(STOP_S)

    def stop(self) -> None:
        """End it and reap it."""
        self.kill()


StartNode = Callable[..., DecodeNode]


def node_starter(folder: Path, made: list[DecodeNode]) -> StartNode:
    """A function that starts a node and remembers it in ``made``."""

    def start(*, wait: bool = True, **options: Any) -> DecodeNode:
        node = DecodeNode(folder / f"node{len(made)}", NodeOptions(**options))
        made.append(node)
        return node.wait_ready() if wait else node

    return start
