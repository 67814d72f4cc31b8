"""What every command shares: which ledger it talks to, and a connection within a bound."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvferry.cli import guard, statefile
from kvferry.cli.options import DEFAULT_URL
from kvferry.errors import ConfigError, LedgerUnavailable
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ledger.credentials import (
    INBOX_VARIABLE,
    Credentials,
    from_environment,
    without_secrets,
)
from kvferry.ports.log import LogPort

if TYPE_CHECKING:
    from kvferry.ledger.jetstream import JetStreamLedger

CONNECT_S = 5.0


class Target(msgspec.Struct, frozen=True):
    """Which ledger a command talks to, and why that one."""

    url: str
    origin: str
    cure: str

    @property
    def shown(self) -> str:
        """The url without a password."""
        return without_secrets(self.url)


def find_ledger(option: str | None) -> Target:
    """``--nats`` or its environment variable, else the running ``up``, else the default."""
    if option:
        return Target(
            option,
            "--nats or KVFERRY_NATS",
            "check the URL, and that the server runs and can be reached from here",
        )
    up = statefile.load()
    if up is not None:
        return Target(
            up.url,
            f"the `kvferry up` of process {up.pid}",
            f"see what the `kvferry up` of process {up.pid} prints",
        )
    return Target(
        DEFAULT_URL,
        "the default, as no `kvferry up` runs",
        "start a ledger with `kvferry up`, or name one with --nats URL",
    )


def credentials(env: Mapping[str, str] = os.environ) -> Credentials:
    """Who we are to the server, from :data:`kvferry.ledger.credentials.VARIABLES`."""
    return Credentials(**from_environment(env))


async def connected(
    target: Target, *, name: str = "kvferry-cli", timeout_s: float = CONNECT_S
) -> JetStreamLedger:
    """A connection that the caller closes.

    Raises:
        LedgerUnavailable: no server within ``timeout_s``; the text says which and the cure.
    """
    # Only here: NATS is half of what a command imports, and help, completion and --file need none.
    from kvferry.ledger.jetstream import connect

    try:
        return await connect(
            target.url,
            name=name,
            credentials=credentials(),
            inbox_prefix=os.environ.get(INBOX_VARIABLE) or "_INBOX",
            timeout_s=timeout_s,
        )
    except LedgerUnavailable as error:
        raise LedgerUnavailable(f"{error} (it comes from {target.origin})") from error


@asynccontextmanager
async def open_ledger(target: Target) -> AsyncIterator[JetStreamLedger]:
    """A connection for the time of a command; raises as :func:`connected` does."""
    ledger = await connected(target)
    try:
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def open_log(nats: str | None, file: Path | None) -> AsyncIterator[LogPort]:
    """What a command reads: the ledger, or an exported file, whose damages are told on stderr.

    Raises:
        ConfigError: both were named, or the file is none of ours.
        LedgerUnavailable: as :func:`connected`.
    """
    if file is None:
        async with open_ledger(find_ledger(nats)) as ledger:
            yield ledger
        return
    # KVFERRY_NATS is often set for a whole shell, so only the option itself is a contradiction.
    if nats and nats != os.environ.get("KVFERRY_NATS"):
        raise ConfigError("--nats and --file are two sources: leave one of them out")
    archive = ArchiveLog(file)
    try:
        if archive.needs():
            guard.note(f"note: {archive.needs()}")
        yield archive
    finally:
        await archive.close()
        for damage in archive.damages:
            guard.note(f"note: {file} at byte {damage.offset}: {damage.what}")
