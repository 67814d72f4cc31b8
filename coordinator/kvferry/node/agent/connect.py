"""How an agent connects when nobody says otherwise: to JetStream, with its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from kvferry.ledger.credentials import Credentials
from kvferry.node.agent.settings import NodeSettings
from kvferry.ports.log import BusPort, LogPort


class Ledger(LogPort, BusPort, Protocol):
    """What a connection gives: the log and the bus."""


Connect = Callable[[NodeSettings], Awaitable[Ledger]]
"""One attempt. Raises :class:`kvferry.errors.LedgerError`, and leaves nothing behind then."""


async def connect_jetstream(settings: NodeSettings) -> Ledger:
    """One attempt to reach the settings' server; once it succeeded the ledger reconnects itself.

    Raises:
        LedgerUnavailable: nobody answers there in ``connect_timeout_s``.
        LedgerRefused: the server refuses us.
        ConfigError: the url or a credential cannot be used.
    """
    # Imported here: an engine process that runs without a ledger needs no NATS client.
    from kvferry.ledger.jetstream import connect

    credentials = Credentials(
        user=settings.user,
        password=settings.password,
        token=settings.token,
        nkey_seed_file=settings.nkey_seed_file,
        creds_file=settings.creds_file,
        tls_ca=settings.tls_ca_file,
        tls_cert=settings.tls_cert_file,
        tls_key=settings.tls_key_file,
    )
    return await connect(
        settings.nats_url,
        name=f"kvferry node {settings.node}",
        credentials=credentials,
        inbox_prefix=settings.inbox_prefix,
        timeout_s=settings.connect_timeout_s,
    )
