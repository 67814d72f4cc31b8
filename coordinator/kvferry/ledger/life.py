"""One connected client, and what is listened to on each."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from kvferry.errors import ConfigError, LedgerError, LedgerRefused, LedgerUnavailable

_log = logging.getLogger("kvferry.ledger")

LISTEN_MESSAGES_MAX = 65_536
LISTEN_BYTES_MAX = 64 * 1024 * 1024


class Life:
    """From a client's connect to its loss. ``lost`` is done once it is lost."""

    client: Client

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.why = ""

    @property
    def connected(self) -> bool:
        """The client was ever connected."""
        return hasattr(self, "client")

    def lose(self, why: str) -> bool:
        """Mark it lost; True for the first call, whose ``why`` stays."""
        if self.lost.done():
            return False
        self.why = why
        self.lost.set_result(None)
        return True


class Listener:
    """A subject that is listened to across lives."""

    def __init__(
        self,
        subject: str,
        on_message: Callable[[Msg], None],
        on_overflow: Callable[[], None] | None,
    ) -> None:
        self.subject = subject
        self._on_message: Callable[[Msg], None] | None = on_message
        self._on_overflow = on_overflow
        self._subscription: Subscription | None = None
        self._client: Client | None = None

    async def attach(self, client: Client) -> None:
        """Subscribe on a client, once."""
        if self._client is client:
            return
        self._client = client

        async def deliver(message: Msg) -> None:
            call = self._on_message
            if call is None:
                return
            try:
                call(message)
            except Exception:
                _log.exception("a message on %s could not be handled", self.subject)

        self._subscription = await client.subscribe(
            self.subject,
            cb=deliver,
            pending_msgs_limit=LISTEN_MESSAGES_MAX,
            pending_bytes_limit=LISTEN_BYTES_MAX,
        )

    def overflowed(self, subscription: Subscription) -> None:
        """The client dropped messages of this subscription because we were too slow."""
        if subscription is self._subscription and self._on_overflow is not None:
            self._on_overflow()

    async def detach(self) -> None:
        """Unsubscribe if its client still lives; silent from now on."""
        self._on_message = self._on_overflow = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except (nats.errors.Error, OSError) as error:
                _log.debug("unsubscribing from %s: %r", self.subject, error)


def connect_error(server: str, error: Exception, timeout_s: float) -> LedgerError:
    """Why ``server`` could not be reached, with the cure."""
    text = str(error) or type(error).__name__
    if isinstance(error, nats.errors.AuthorizationError) or "authorization" in text.lower():
        return LedgerRefused(
            f"the ledger at {server} refuses our credentials: give the user, token, nkey or "
            "creds file that the server knows, to engines as nats_credentials, to commands as "
            "KVFERRY_NATS_USER and the other variables that `kvferry --help` names"
        )
    if isinstance(error, ssl.SSLError):
        return LedgerRefused(
            f"TLS with the ledger at {server} failed: {text}; give its CA (tls_ca), and tls_cert "
            "and tls_key if it asks for them, to commands as KVFERRY_NATS_TLS_CA and so on"
        )
    if isinstance(error, ConfigError):
        return LedgerRefused(str(error))
    if isinstance(error, TimeoutError):
        text = f"no answer within {timeout_s:g} s"
    return LedgerUnavailable(
        f"no ledger at {server}: {text}. Start `kvferry up` or nats-server there, or correct "
        "the url"
    )
