"""Helpers for the ledger's tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.server_process import find_binary
from kvferry.ports.log import LogPort, Stored

WAIT_S = 30.0


async def eventually(check: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Wait until ``check`` holds."""
    deadline = time.monotonic() + wait_s
    while not check():
        assert time.monotonic() < deadline, f"not within {wait_s} s: {what}"
        await asyncio.sleep(0.01)


async def within(awaitable: Awaitable[Any], wait_s: float = WAIT_S) -> Any:
    """The awaitable's result, in bounded time."""
    return await asyncio.wait_for(awaitable, wait_s)


async def read_all(log: LogPort, stream: str, **options: Any) -> list[Stored]:
    """Everything of a stream as it is now."""
    async with asyncio.timeout(WAIT_S):
        return [stored async for stored in log.read(stream, **options)]


async def take(
    log: MemoryLog | JetStreamLedger, stream: str, count: int, **options: Any
) -> list[Stored]:
    """The first ``count`` messages of a read that follows."""
    taken: list[Stored] = []
    async with asyncio.timeout(WAIT_S), aclosing(log.read(stream, follow=True, **options)) as read:
        async for stored in read:
            taken.append(stored)
            if len(taken) == count:
                break
    return taken


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RawServer:
    """A nats-server that nobody watches, with any configuration, for tests of failures."""

    def __init__(self, store: Path, **config: Any) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = store / "raw.conf"
        self._store = store
        self._config.write_text(
            json.dumps(
                {
                    "host": "127.0.0.1",
                    "port": self.port,
                    "server_name": "raw",
                    "jetstream": {"store_dir": str(store / "js"), "max_file_store": 8 * 1024**3},
                    **config,
                }
            )
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self._store / "raw.log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_binary(), "-c", str(self._config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, (self._store / "raw.log").read_text()
                time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_S)
            self._process = None
