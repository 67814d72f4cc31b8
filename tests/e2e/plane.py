"""The control plane for end-to-end tests: a real nats-server and a real coordinator process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from kvferry.core.apply import apply_batch
from kvferry.core.envelope import Batch, Position
from kvferry.core.events import Event
from kvferry.core.state import SpaceState, State
from kvferry.errors import CodecError
from kvferry.ledger.codec import decode
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM, Stored
from kvferry_connectors.demo.tilert.told import all_told

T = TypeVar("T")
KVFERRY = [str(Path(sys.executable).parent / "kvferry")]


class Recorded:
    """One event as the ledger holds it; ``lane_seq`` is its own place in its lane."""

    def __init__(self, stored: Stored, batch: Batch, index: int) -> None:
        entry = batch.entries[index]
        self.seq = stored.seq
        self.stored_ms = stored.stored_ms
        self.space = batch.space
        self.node = batch.node
        self.incarnation = batch.incarnation
        self.epoch = batch.epoch
        self.lane = batch.lane
        self.lane_seq = batch.seq + index
        self.event: Event = entry.event
        self.cause = entry.cause

    def __repr__(self) -> str:
        return f"{self.seq} {self.node} {self.event}"


class View:
    """A ledger as anybody can read it, and commands against it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def use(self, action: Callable[[JetStreamLedger], Coroutine[Any, Any, T]]) -> T:
        """Run one action over a connection of its own."""

        async def run() -> T:
            ledger = await connect(self.url, name="test")
            try:
                return await action(ledger)
            finally:
                await ledger.close()

        return asyncio.run(run())

    def events(self, stream: str = FACTS_STREAM) -> list[Recorded]:
        """Every event of a stream, in order."""

        async def read(ledger: JetStreamLedger) -> list[Recorded]:
            found = []
            async for stored in ledger.read(stream):
                with contextlib.suppress(CodecError):
                    batch = decode(stored.data)
                    found += [Recorded(stored, batch, index) for index in range(len(batch.entries))]
            return found

        return self.use(read)

    def blocks(self) -> list[Recorded]:
        return self.events(BLOCKS_STREAM)

    def state(self) -> State:
        """A fresh fold of the whole facts stream."""

        async def fold(ledger: JetStreamLedger) -> State:
            state = State()
            async for stored in ledger.read(FACTS_STREAM):
                with contextlib.suppress(CodecError):
                    apply_batch(state, decode(stored.data), Position(stored.seq, stored.stored_ms))
                state.position = stored.seq
            return state

        return self.use(fold)

    def space(self) -> SpaceState:
        """The one space of engines there is."""
        spaces = [s for name, s in self.state().spaces.items() if name != "router"]
        assert len(spaces) == 1, f"{len(spaces)} spaces"
        return spaces[0]

    def wait_projected(self, timeout_s: float = 60.0) -> None:
        """Wait until the coordinator's index holds everything that is stored now, and nodes were
        told so: a node that still believes what it was told before asks for no plan."""

        async def wait(ledger: JetStreamLedger) -> None:
            target = (await ledger.bounds(FACTS_STREAM)).last
            await all_told(ledger, target, timeout_s)

        self.use(wait)

    def wait_for(
        self, condition: Callable[[list[Recorded]], object], what: str, timeout_s: float = 60.0
    ) -> list[Recorded]:
        """Read the facts until ``condition`` holds over them."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.events()
            if condition(found):
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"the ledger never showed: {what}; it holds {found[-30:]}")
            time.sleep(0.1)

    def cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a kvferry command against this ledger."""
        env = dict(os.environ, KVFERRY_NATS=self.url)
        return subprocess.run(
            [*KVFERRY, *args], env=env, capture_output=True, text=True, timeout=120, check=False
        )


class Plane(View):
    """A ledger and a coordinator."""

    def __init__(self, folder: Path, *, silent_after_s: float | None = None, port: int = 0) -> None:
        self.folder = folder
        self.server = EmbeddedServer(folder / "store", port=port)
        self.server.start()
        super().__init__(self.server.url)
        self._silent = silent_after_s
        self.coordinator: subprocess.Popen[bytes] | None = None

    def start_coordinator(self, *, cost: bool = False) -> None:
        """Start the daemon; with ``cost`` it finds moves too dear.

        Without, for these models compute so fast that a busy test machine makes moves look dear.
        """
        extra = [] if cost else ["--cost", "off"]
        if self._silent is not None:
            extra += ["--silent-after-s", str(self._silent)]
        log = (self.folder / "coordinator.log").open("ab")
        self.coordinator = subprocess.Popen(
            [*KVFERRY, "coordinator", "--nats", self.url, *extra], stdout=log, stderr=log
        )
        log.close()

    def replace_coordinator(self, *, cost: bool = False) -> None:
        """Stop the daemon cleanly and start another one."""
        self._end_coordinator()
        self.start_coordinator(cost=cost)

    def kill_coordinator(self) -> None:
        if self.coordinator is not None:
            self.coordinator.send_signal(signal.SIGKILL)
            self.coordinator.wait(30)
            self.coordinator = None

    def kill_nats(self) -> None:
        """As kill -9 would; the embedded server's watcher starts it again on the same port."""
        pid = self.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        self._end_coordinator()
        self.server.close()

    def _end_coordinator(self) -> None:
        if self.coordinator is not None:
            self.coordinator.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.coordinator.wait(20)
            self.kill_coordinator()


def of(events: list[Recorded], kind: type[T], **fields: object) -> list[T]:
    """The events of one kind whose fields have these values."""
    return [
        r.event
        for r in events
        if isinstance(r.event, kind)
        and all(getattr(r.event, name) == value for name, value in fields.items())
    ]
