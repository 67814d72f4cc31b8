"""The ledger's server: the shipped log in memory, and a bus, reached over the simulated network.

Messages to and from it get lost, are repeated or late, as the knobs say; what is stored is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tests.sim.checks.violations import Violations
from tests.sim.kernel.kernel import Kernel, Process
from tests.sim.kernel.network import Network
from tests.sim.world.knobs import Knobs

from kvferry.errors import LedgerError
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.streams import StreamLimits
from kvferry.ledger.subjects import matches
from kvferry.ports.log import Stored

if TYPE_CHECKING:
    from tests.sim.world.connection import Connection

HOST = "ledger"
FORGOTTEN_SHARE = 0.3
"""Of repeated messages, that the log has forgotten and stores again."""

Request = Callable[[MemoryLog], Awaitable[Any]]


class LedgerServer:
    """One process that never dies; partitions make it unreachable.

    Attributes:
        history: every message of the facts stream that was ever stored, whatever its limits drop.
        details: the same of the blocks stream.
    """

    def __init__(
        self, kernel: Kernel, network: Network, violations: Violations, knobs: Knobs
    ) -> None:
        self.kernel, self.network, self._violations = kernel, network, violations
        self._knobs = knobs
        self.process = Process(kernel, HOST)
        self.history: list[Stored] = []
        self.details: list[Stored] = []
        self._log: MemoryLog | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[tuple[str, Connection, Any]] = []
        self._arrives: dict[tuple[str, str], float] = {}
        kernel.spawn(self.process, HOST, self._main)

    # --- the network between ----------------------------------------------------------------

    def post(self, sender: str, receiver: str, act: Callable[[], None]) -> None:
        """One message, in order with the others of the pair unless it is lost or repeated."""
        rng, key = self.network.rng, (sender, receiver)
        loses = self._knobs.ledger_loses if self.kernel.now_s < self._knobs.busy_s else 0.0
        if rng.random() < loses:
            return
        when = max(self.network.arrival_s(sender, receiver), self._arrives.get(key, 0.0))
        self._arrives[key] = when
        self.kernel.at(when, act)
        if rng.random() < loses:
            self.kernel.at(when + self.network.delay_s() * 20, act)

    def serve(self, request: Request, answer: Callable[[Any, bool], None]) -> None:
        """A request arrives: its result, or error, and whether it is one, go to ``answer``."""
        if self._loop is None or self._log is None:
            return
        log = self._log

        async def work() -> None:
            try:
                result, failed = await request(log), False
            except LedgerError as error:
                result, failed = error, True
            answer(result, failed)

        self._loop.call_soon_threadsafe(lambda: self._begin(work()))

    def listen(self, pattern: str, connection: Connection, mailbox: Any) -> None:
        self._listeners.append((pattern, connection, mailbox))

    def unlisten(self, mailbox: Any) -> None:
        self._listeners = [one for one in self._listeners if one[2] is not mailbox]

    def spread(self, subject: str, data: bytes, reply: Any) -> int:
        """A message of the bus arrives and goes out to whoever listens."""
        taken = [
            one for one in self._listeners if matches(one[0], subject) and one[1].process.alive
        ]
        for _, connection, mailbox in taken:
            self.post(HOST, connection.host, connection.delivering(mailbox, subject, data, reply))
        return len(taken)

    # --- what is stored ---------------------------------------------------------------------

    async def append(
        self, writer: str, subject: str, data: bytes, message_id: str, expected: int | None
    ) -> int:
        """Store a message; nobody writes under another's name."""
        log = self._log
        assert log is not None
        parts = subject.split(".")
        owner = parts[2] if parts[-1] != "coord" else ""
        if owner not in ("", writer) or (owner == "" and not writer.startswith("c")):
            self._violations.add("secrecy", f"{writer} writes to {subject}")
        stream = "KVF_BLOCKS" if parts[-1] == "blocks" else "KVF"
        last = (await log.bounds(stream)).last
        seq = await log.append(subject, data, message_id=message_id, expected_last=expected)
        forgets = expected is None and self.network.rng.random() < FORGOTTEN_SHARE
        if seq <= last and forgets:
            again = f"{message_id}+{last}"
            seq = await log.append(subject, data, message_id=again)
        if seq > last:
            stored = Stored(seq, subject, data, 0)
            async for kept in log.read(stream, start=seq):
                stored = kept
                break
            (self.details if stream == "KVF_BLOCKS" else self.history).append(stored)
            self.kernel.note("stored", stream, seq, subject.rsplit(".", 2)[-2:], len(data))
        return seq

    async def tear(self, pick: Callable[[list[str]], str | None]) -> None:
        """Damage an object: half of it is gone."""
        log = self._log
        assert log is not None
        name = pick(sorted(log._objects))
        data = await log.get(name) if name is not None else None
        if name is not None and data is not None:
            self.kernel.note("tear", name)
            await log.put(name, data[: len(data) // 2])

    # --- its thread -------------------------------------------------------------------------

    def _main(self) -> None:
        self._loop = loop = asyncio.new_event_loop()
        self._log = MemoryLog(StreamLimits(facts_max_bytes=self._knobs.stream_bytes))
        loop.run_forever()

    def _begin(self, work: Any) -> None:
        assert self._loop is not None
        self._loop.create_task(work)
