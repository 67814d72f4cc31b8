"""The connection to NATS: always either up, or being replaced.

A :class:`Life` is one connected client from its first byte to its last. When it is lost, for
whatever reason, the link throws it away and builds the next one, subscribes again what was
listened to, and goes on until closed. Nothing that was sent on a lost life is sent again by the
link: each user knows what it may repeat.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from kvferry.errors import ConfigError, LedgerError, LedgerRefused, LedgerUnavailable
from kvferry.ledger import natsclient
from kvferry.ledger.credentials import Credentials, client_options, servers_of, without_secrets
from kvferry.ledger.life import Life, Listener, connect_error
from kvferry.ledger.refusals import Refusals

_log = logging.getLogger("kvferry.ledger")

CONNECT_WAIT_S = 5.0
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.1, 2.0
SHORT_LIFE_S = 5.0
"""A connection that lasted longer is replaced at once, a shorter one after the backoff."""
PROBE_EVERY_S = 2.0
PONG_WAIT_S = 4.0
SERVERS_MAX = 32


class Link:
    """One link for one event loop; made by :func:`kvferry.ledger.jetstream.connect`."""

    def __init__(self, url: str, *, name: str, credentials: Credentials, inbox_prefix: str) -> None:
        self._servers = servers_of(url)
        self.url = without_secrets(url)
        self.inbox_prefix = inbox_prefix
        self.refusals = Refusals(self.url)
        self.why_down = "not connected yet"
        self.lives = 0
        """Attempts to connect so far; numbers the present life."""
        self._name = name
        self._options = client_options(credentials)
        self._life: Life | None = None
        self._up = asyncio.Event()
        self._closing = asyncio.Event()
        self._listeners: dict[Listener, None] = {}
        self._wait_s = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Connected, as far as we know."""
        return self._up.is_set()

    @property
    def closed(self) -> bool:
        """Closed by us; nothing will come any more."""
        return self._closing.is_set()

    async def start(self, timeout_s: float) -> None:
        """Connect once to each server in turn; from then on the link keeps itself up.

        Raises:
            LedgerUnavailable: no server answered within ``timeout_s``.
            LedgerRefused: a server answered and refused us.
        """
        try:
            self._life = await self._bring_up(timeout_s)
        except BaseException:
            self._closing.set()
            raise
        self._task = asyncio.create_task(self._run(self._life), name=f"kvferry ledger {self._name}")

    async def life(self, wait_s: float) -> Life:
        """The present life; waits for one for at most ``wait_s``.

        Raises:
            LedgerUnavailable: there is none by then, or the link is closed.
        """
        if not self._up.is_set() and not self.closed:
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._up.wait()
            except TimeoutError:
                raise LedgerUnavailable(
                    f"the ledger at {self.url} is not connected: {self.why_down}"
                ) from None
        if self.closed or self._life is None:
            raise LedgerUnavailable(f"the ledger at {self.url} is closed")
        return self._life

    def lose(self, life: Life, why: str) -> None:
        """Give this life up. Safe to call again, and for a life that is long gone."""
        if life.lose(why) and life is self._life:
            self._up.clear()
            self.why_down = why

    async def probe(self, life: Life) -> None:
        """Return once the server has taken what was sent; silence means that the life is lost."""
        try:
            await natsclient.barrier(life.client, PONG_WAIT_S)
        except TimeoutError:
            self.lose(life, f"no answer to a ping within {PONG_WAIT_S:g} s")
        except (nats.errors.Error, OSError) as error:
            self.lose(life, f"the connection broke ({error})")

    async def publish(
        self,
        life: Life,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Hand a message to this life's socket.

        Raises:
            LedgerRefused: larger than the server takes.
            LedgerUnavailable: this life is lost.
        """
        if life.lost.done():
            raise LedgerUnavailable(f"the connection to {self.url} was lost: {life.why}")
        try:
            await life.client.publish(subject, data, reply=reply, headers=headers)
        except nats.errors.MaxPayloadError:
            raise LedgerRefused(
                f"{subject}: {len(data)} bytes are more than the server's max_payload "
                f"({life.client.max_payload}); raise it on the server"
            ) from None
        except (nats.errors.Error, OSError) as error:
            self.lose(life, f"sending failed: {error}")
            raise LedgerUnavailable(f"the connection to {self.url} was lost: {error}") from error

    async def listen(
        self,
        subject: str,
        on_message: Callable[[Msg], None],
        on_overflow: Callable[[], None] | None = None,
    ) -> Listener:
        """Call ``on_message``, which must not block, for each message on every life from now on."""
        listener = Listener(subject, on_message, on_overflow)
        self._listeners[listener] = None
        life = self._life
        if life is not None and not life.lost.done():
            await self._attach(listener, life)
        return listener

    async def unlisten(self, listener: Listener) -> None:
        """Stop; no call of ``on_message`` comes after the return."""
        self._listeners.pop(listener, None)
        await listener.detach()

    async def close(self) -> None:
        """Disconnect and end every task of the link, in bounded time."""
        self._closing.set()
        self._up.set()  # wakes who waits for a life; they find the link closed
        if self._life is not None:
            self._life.lose("closed by us")
        if self._task is not None:
            await natsclient.cancel({self._task})
        if self._life is not None:
            await natsclient.dispose(self._life.client)
        for listener in list(self._listeners):
            await self.unlisten(listener)

    # --- keeping it up ----------------------------------------------------------------------

    async def _run(self, life: Life) -> None:
        clock = asyncio.get_running_loop().time
        while not self.closed:
            born = clock()
            await self._watch(life)
            self._up.clear()
            if self.closed:
                return
            _log.warning("lost the ledger at %s: %s; connecting again", self.url, life.why)
            await natsclient.dispose(life.client)
            replacement = await self._replace(clock() - born)
            if replacement is None:
                return
            life = self._life = replacement

    async def _watch(self, life: Life) -> None:
        while not life.lost.done():
            await asyncio.wait({life.lost}, timeout=PROBE_EVERY_S)
            if life.lost.done():
                return
            probe = asyncio.create_task(self.probe(life), name="kvferry ledger probe")
            try:
                await asyncio.wait({probe, life.lost}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await natsclient.cancel({probe})

    async def _replace(self, lived_s: float) -> Life | None:
        if lived_s > SHORT_LIFE_S:
            self._wait_s = 0.0
        # The lost one comes last: it may still take connections and never answer.
        self._servers.append(self._servers.pop(0))
        last = ""
        while not await self._closing_within(self._wait_s * random.uniform(0.75, 1.25)):
            self._wait_s = min(BACKOFF_MAX_S, max(BACKOFF_FIRST_S, 2 * self._wait_s))
            try:
                return await self._bring_up(CONNECT_WAIT_S)
            except LedgerError as error:
                self.why_down = str(error)
            if self.why_down != last:
                last = self.why_down
                _log.warning("%s; trying again until it answers", last)
        return None

    async def _closing_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    async def _bring_up(self, timeout_s: float) -> Life:
        failure: LedgerError | None = None
        for server in list(self._servers):
            self.lives += 1
            life = Life()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._connect(life, server, timeout_s)
                    for listener in list(self._listeners):
                        await self._attach(listener, life)
                    await natsclient.barrier(life.client, timeout_s)
            except (TimeoutError, OSError, nats.errors.Error, ConfigError) as error:
                if life.connected:
                    await natsclient.dispose(life.client)
                failure = connect_error(without_secrets(server), error, timeout_s)
                self._servers.append(self._servers.pop(0))
                continue
            self._life = life
            for listener in list(self._listeners):  # those that came meanwhile
                await self._attach(listener, life)
            if not life.lost.done():
                self._up.set()
            _log.info("the ledger at %s is connected", without_secrets(server))
            return life
        assert failure is not None
        raise failure

    async def _connect(self, life: Life, server: str, timeout_s: float) -> None:
        async def errored(error: Exception) -> None:
            self._errored(error)

        async def closed() -> None:
            cause = life.client.last_error if life.connected else "while connecting"
            self.lose(life, f"the server closed the connection ({cause})")

        life.client = await natsclient.open_client(
            server,
            name=self._name,
            options=self._options,
            inbox_prefix=self.inbox_prefix,
            on_error=errored,
            on_closed=closed,
            timeout_s=timeout_s,
        )
        self._learn_servers(life.client)

    def _learn_servers(self, client: Client) -> None:
        for found in client.discovered_servers:
            server = f"{found.scheme or 'nats'}://{found.netloc}"
            if server not in self._servers and len(self._servers) < SERVERS_MAX:
                self._servers.append(server)

    async def _attach(self, listener: Listener, life: Life) -> None:
        try:
            await listener.attach(life.client)
        except (nats.errors.Error, OSError) as error:
            self.lose(life, f"subscribing to {listener.subject} failed: {error}")

    def _errored(self, error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            for listener in list(self._listeners):
                listener.overflowed(error.sub)
            return
        forbidden = natsclient.violation(error)
        if forbidden is None:
            _log.debug("NATS client: %r", error)
        else:
            self.refusals.heard(*forbidden)
