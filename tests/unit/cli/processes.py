"""Real processes for tests of the command line: `kvferry up`, and engines that only talk."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.unit.cli.support import Writer, converse

from kvferry.core.messages import Heartbeat, encode, heartbeat_subject
from kvferry.ledger.jetstream import JetStreamLedger, connect

BOUND_S = 120.0
BEAT_S = 0.3
COMMAND = [sys.executable, "-m", "kvferry.cli"]


def environment(home: Path, **more: str) -> dict[str, str]:
    """The process's environment with a state and configuration folder of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("KVFERRY_")}
    env |= {"XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), **more}
    return env


def kvferry(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


class Up:
    """A running `kvferry up --port 0 --json`."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.stderr = home / "up.stderr"
        with self.stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, "up", "--port", "0", "--json", *arguments],
                env=environment(home),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"up did not start: {self.stderr.read_text()}"
        self.said: dict[str, Any] = json.loads(line)
        self.url: str = self.said["url"]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait for its end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(BOUND_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def running_up(home: Path, *arguments: str) -> Iterator[Up]:
    up = Up(home, *arguments)
    try:
        yield up
    finally:
        up.end(signal.SIGKILL if up.process.poll() is None else signal.SIGTERM)


class Engines:
    """P and D of the small conversation: they write, beat and listen, and have no KV.

    They live on a thread of their own, so that tests may run commands meanwhile.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="engines")

    def __enter__(self) -> Engines:
        self._thread.start()
        assert self._ready.wait(BOUND_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(BOUND_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _live(self) -> None:
        ledger = await connect(self._url, name="engines")
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            writers = await converse(ledger, address=address)
            await self._beat(ledger, writers)
            self._ready.set()
            while not self._stop.is_set():
                await self._beat(ledger, writers)
                try:
                    async with asyncio.timeout(BEAT_S):
                        await self._stop.wait()
                except TimeoutError:
                    continue
        finally:
            server.close()
            await server.wait_closed()
            await ledger.close()

    async def _beat(self, ledger: JetStreamLedger, writers: tuple[Writer, ...]) -> None:
        for one in writers:
            beat = Heartbeat(
                node=one.node, space=one.space, incarnation=one.incarnation, epoch=one.epoch
            )
            await ledger.publish(heartbeat_subject(one.space, one.node), encode(beat))


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition of another process."""
    until = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < until, f"not within {BOUND_S:g} s: {what}"
        time.sleep(0.05)
