"""A ledger for the time of a benchmark: a real nats-server over a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

from kvferry.bench.history.shape import Message
from kvferry.errors import ConfigError, LedgerRefused
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ports.log import FACTS_STREAM

WINDOW_MESSAGES = 1024
"""Messages that are stored by one call."""


@asynccontextmanager
async def temporary_ledger(folder: Path | None) -> AsyncIterator[JetStreamLedger]:
    """A ledger that is gone afterwards, below ``folder`` (None: where temporary files go).

    Raises:
        ConfigError: ``folder`` cannot be used, or no nats-server is installed.
    """
    try:
        holder = tempfile.TemporaryDirectory(prefix="kvferry-bench-", dir=folder)
    except OSError as error:
        raise ConfigError(f"--store {folder} cannot be used: {error.strerror}") from error
    with holder as store, EmbeddedServer(store) as server:
        ledger = await connect(server.url, name="kvferry-bench")
        try:
            limits = server.limits
            await ledger.ensure_streams(
                facts_max_bytes=limits.facts_max_bytes,
                blocks_max_bytes=limits.blocks_max_bytes,
                objects_max_bytes=limits.objects_max_bytes,
            )
            yield ledger
        finally:
            await ledger.close()


async def store(ledger: JetStreamLedger, messages: Iterable[Message]) -> None:
    """Store messages in their order.

    Raises:
        LedgerRefused: the stream had no room for all of them.
    """
    left = iter(messages)
    while window := list(islice(left, WINDOW_MESSAGES)):
        await ledger.append_many([(one.subject, one.data, one.message_id) for one in window])
    first = (await ledger.bounds(FACTS_STREAM)).first
    if first > 1:
        raise LedgerRefused(
            f"the first {first - 1} messages were dropped, for the stream may take only a part of "
            "the free disk: name a folder on a larger one with --store, or ask for fewer events"
        )
