"""What a process holds of the ledger: log, bus and objects over the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from tests.sim.kernel.kernel import running
from tests.sim.world.ledger import HOST, LedgerServer, Request

from kvferry.errors import LedgerUnavailable
from kvferry.ledger.mailbox import Mailbox
from kvferry.ledger.memory import MemoryLog
from kvferry.ports.log import Handler, Reply, Stored, StreamBounds

CALL_S = 1.0
"""For one answer; then the ledger counts as unreachable."""
ROUNDS_MAX = 3
FETCH_MESSAGES_MAX = 64
FETCH_WAIT_S = 0.5


class Connection:
    """LogPort, BusPort and ObjectPort of the process whose thread makes it."""

    def __init__(self, server: LedgerServer) -> None:
        self.server = server
        self.process = running().current_thread().process
        self.host = self.process.name
        self._loop = asyncio.get_running_loop()
        self._mailboxes: list[Mailbox] = []
        self._closed = False

    # --- LogPort ----------------------------------------------------------------------------

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        host, server = self.host, self.server
        seq = await self.call(
            lambda log: server.append(host, subject, data, message_id, expected_last)
        )
        return int(seq)

    async def append_many(self, batch: list[tuple[str, bytes, str]]) -> None:
        """Go-back-N: all from the first unacknowledged message on are sent again."""
        acknowledged = 0
        for _ in range(ROUNDS_MAX):
            rest = batch[acknowledged:]
            answers = await asyncio.gather(
                *(self.append(s, d, message_id=i) for s, d, i in rest), return_exceptions=True
            )
            for answer in answers:
                if isinstance(answer, BaseException):
                    if not isinstance(answer, LedgerUnavailable):
                        raise answer
                    break
                acknowledged += 1
            if acknowledged == len(batch):
                return
        raise LedgerUnavailable("the ledger does not acknowledge")

    async def read(
        self, stream: str, *, start: int = 1, follow: bool = False, subject: str = ">"
    ) -> AsyncGenerator[Stored, None]:
        end = 0 if follow else (await self.bounds(stream)).last
        position = start
        while not self._closed and (follow or position <= end):
            try:
                part = await self.call(_fetching(stream, position, subject, follow))
            except LedgerUnavailable:
                if not follow:
                    raise
                await asyncio.sleep(0.1)
                continue
            for stored in part:
                if not follow and stored.seq > end:
                    return
                position = stored.seq + 1
                yield stored
            if not part and not follow:
                return

    async def bounds(self, stream: str) -> StreamBounds:
        found = await self.call(lambda log: log.bounds(stream))
        assert isinstance(found, StreamBounds)
        return found

    async def last_of_subject(self, subject: str) -> Stored | None:
        found = await self.call(lambda log: log.last_of_subject(subject))
        assert found is None or isinstance(found, Stored)
        return found

    async def close(self) -> None:
        self._closed = True
        for mailbox in self._mailboxes:
            self.server.unlisten(mailbox)
            await mailbox.close()

    # --- BusPort ----------------------------------------------------------------------------

    async def publish(self, subject: str, data: bytes) -> None:
        self._check()
        self.server.post(self.host, HOST, lambda: _ignore(self.server.spread(subject, data, None)))

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        self._check()
        answer: asyncio.Future[bytes | None] = self._loop.create_future()
        server = self.server

        async def reply(payload: bytes) -> None:
            there = running().current_thread().process.name
            server.post(
                there, HOST, lambda: server.post(HOST, self.host, self._set(answer, payload))
            )

        def arrive() -> None:
            if not server.spread(subject, data, reply):
                server.post(HOST, self.host, self._set(answer, None))

        server.post(self.host, HOST, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                found = await answer
        except TimeoutError:
            raise LedgerUnavailable(f"nobody answered on {subject}") from None
        if found is None:
            raise LedgerUnavailable(f"nobody listens on {subject}")
        return found

    async def subscribe(self, subject: str, handler: Handler) -> Callable[[], Awaitable[None]]:
        await self.call(lambda log: log.bounds("KVF"))
        mailbox = Mailbox(subject, handler)
        self._mailboxes.append(mailbox)
        self.server.listen(subject, self, mailbox)

        async def stop() -> None:
            self.server.unlisten(mailbox)
            await mailbox.close()

        return stop

    def connected(self) -> bool:
        return not self._closed and not self.server.network.parted_until(self.host, HOST)

    def delivering(
        self, mailbox: Mailbox, subject: str, data: bytes, reply: Reply | None
    ) -> Callable[[], None]:
        """What happens when a message of the bus reaches this process."""
        return lambda: self._here(lambda: mailbox.put(subject, data, reply))

    # --- ObjectPort -------------------------------------------------------------------------

    async def put(self, name: str, data: bytes) -> None:
        await self.call(lambda log: log.put(name, data))

    async def get(self, name: str) -> bytes | None:
        found = await self.call(lambda log: log.get(name))
        assert found is None or isinstance(found, bytes)
        return found

    async def delete(self, name: str) -> None:
        await self.call(lambda log: log.delete(name))

    # --- over the network -------------------------------------------------------------------

    async def call(self, request: Request) -> Any:
        """Ask the server.

        Raises:
            LedgerUnavailable: no answer in time; it may have done what was asked all the same.
        """
        self._check()
        server = self.server
        answer: asyncio.Future[tuple[Any, bool]] = self._loop.create_future()

        def back(result: Any, failed: bool) -> None:
            server.post(HOST, self.host, self._set(answer, (result, failed)))

        server.post(self.host, HOST, lambda: server.serve(request, back))
        try:
            async with asyncio.timeout(CALL_S):
                result, failed = await answer
        except TimeoutError:
            raise LedgerUnavailable("the ledger does not answer") from None
        if failed:
            raise result
        return result

    def _check(self) -> None:
        if self._closed:
            raise LedgerUnavailable("the connection is closed")

    def _set(self, answer: asyncio.Future[Any], result: Any) -> Callable[[], None]:
        def act() -> None:
            if not answer.done():
                answer.set_result(result)

        return lambda: self._here(act)

    def _here(self, act: Callable[[], None]) -> None:
        if self.process.alive and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)


def _fetching(stream: str, position: int, subject: str, follow: bool) -> Request:
    async def fetch(log: MemoryLog) -> list[Stored]:
        last = (await log.bounds(stream)).last
        found: list[Stored] = []
        if position > last and not follow:
            return found
        try:
            async with (
                asyncio.timeout(FETCH_WAIT_S),
                aclosing(log.read(stream, start=position, follow=follow, subject=subject)) as read,
            ):
                async for stored in read:
                    found.append(stored)
                    if stored.seq >= last or len(found) >= FETCH_MESSAGES_MAX:
                        break
        except TimeoutError:
            pass
        return found

    return fetch


def _ignore(_: object) -> None:
    return
