"""How an agent connects when nobody says otherwise: to JetStream, with its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from kvferry.node.agent.credentials import credentials_of
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

    return await connect(
        settings.nats_url,
        name=f"kvferry node {settings.node}",
        credentials=credentials_of(settings),
        inbox_prefix=settings.inbox_prefix,
        timeout_s=settings.connect_timeout_s,
    )
