"""TileRT decode nodes of the demo: TileRT's own server, started by ``kvferry tilert-node``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from kvferry_connectors.demo.engines import child_environment
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.folder import RunFolder
from kvferry_connectors.demo.process import Child
from kvferry_connectors.demo.settings import HOST
from kvferry_connectors.demo.tilert import package, profile, stub
from kvferry_connectors.demo.tilert.serving import PORTS
from kvferry_connectors.demo.tilert.settings import TilertDemoSettings

POLL_S = 0.05
ENGINE = "kvferry_connectors.demo.tilert.stub:make"


class Node:
    """One node under its name."""

    def __init__(self, name: str, *, settings: TilertDemoSettings, run: RunFolder) -> None:
        self.name = name
        self._settings = settings
        self._run = run
        self._folder: Path = run.path / name
        self._child: Child | None = None
        self.control_port = self.http_port = 0

    @property
    def url(self) -> str:
        """The root of its HTTP server."""
        return f"http://{HOST}:{self.http_port}"

    async def start(self, nats_url: str) -> None:
        """Start the process; :meth:`wait_healthy` waits for it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        own = {stub.FOLDER: str(self._folder)}
        self._child = Child(
            self.name,
            [
                *(sys.executable, "-m", "kvferry_connectors.demo.tilert.node_child"),
                *(str(self._folder), "--node", self.name, "--nats", nats_url),
                *("--key", f"file:{self._run.key}", "--engine", ENGINE),
                *("--host-tier-bytes", str(self._settings.node_bytes)),
                *("--return-within-ms", str(self._settings.return_within_ms)),
                *("--model", str(profile.PROFILE["name"]), "--transport", "nixl"),
                *("--pd-buffer-device", "cpu", "--kv-cache-dtype", self._settings.dtype),
                *("--max-seq-len", str(self._settings.max_model)),
                *("--ctrl-port", "0", "--http-port", "0"),
            ],
            env=child_environment(self._run) | package.environment() | own,
            log=self._run.log(self.name),
            talk=True,  # It ends when its standard input does, so never after us.
        )
        await self._child.start()

    async def wait_healthy(self, client: httpx.AsyncClient) -> None:
        """
        Raises:
            DemoError: it ended, or does not answer in time.
        """
        told = self._folder / PORTS
        await self._until(told.exists, self._settings.start_s, "tells its ports")
        self.control_port, self.http_port = json.loads(told.read_text())
        deadline = time.monotonic() + self._settings.start_s
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(f"{self.url}/health")).status_code == 200:
                    return
            await asyncio.sleep(POLL_S)
        raise DemoError(f"{self.name} does not answer:\n{self._running.tail()}", self._running.log)

    def pause(self) -> None:
        """Let generation wait after its first tokens."""
        (self._folder / stub.PAUSE).touch()

    def resume(self) -> None:
        """Let it go on."""
        (self._folder / stub.PAUSE).unlink(missing_ok=True)

    async def wait_decoding(self, *, decoding: bool = True) -> None:
        """Wait until it generates, or does not any more.

        Raises:
            DemoError: it does not come to that in time.
        """
        mark = self._folder / stub.DECODING
        what = "generates" if decoding else "stops generating"
        await self._until(lambda: mark.exists() is decoding, self._settings.answer_s, what)

    async def kill(self) -> None:
        """End it as a crash would."""
        await self._running.kill()

    async def stop(self) -> None:
        """End it cleanly, or by force when it does not obey."""
        if self._child is not None:
            await self._child.stop(self._settings.stop_s)

    @property
    def _running(self) -> Child:
        assert self._child is not None, f"{self.name} was not started"
        return self._child

    async def _until(self, condition: Callable[[], bool], bound_s: float, what: str) -> None:
        deadline = time.monotonic() + bound_s
        while not condition():
            self._running.check()
            if time.monotonic() > deadline:
                raise DemoError(
                    f"{self.name}: it never {what}:\n{self._running.tail()}", self._running.log
                )
            await asyncio.sleep(POLL_S)
