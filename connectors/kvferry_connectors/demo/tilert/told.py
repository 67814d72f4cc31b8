"""Until everybody who decides about the next turn knows what this one left behind."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from kvferry.core.messages import ANNOUNCE_SUBJECT, Announce, Held, held_subject
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.node.plans.held import TRUSTED_S
from kvferry.ports.log import Reply
from kvferry_connectors.demo.errors import DemoError


async def all_told(ledger: JetStreamLedger, position: int, bound_s: float) -> None:
    """Wait until the coordinator has folded the facts up to ``position``, and nodes were told.

    A turn that follows on the heels of another may be planned before the coordinator has read
    what that one left; it is then planned with what was known, which is right and not shown here.

    Raises:
        DemoError: the coordinator is not as far in time.
    """
    folded, told = asyncio.Event(), asyncio.Event()

    async def announced(subject: str, data: bytes, reply: Reply | None) -> None:
        if msgspec.msgpack.decode(data, type=Announce).position >= position:
            folded.set()

    async def held(subject: str, data: bytes, reply: Reply | None) -> None:
        if msgspec.msgpack.decode(data, type=Held).position >= position:
            told.set()

    async with contextlib.AsyncExitStack() as stops:
        stops.push_async_callback(await ledger.subscribe(ANNOUNCE_SUBJECT, announced))
        stops.push_async_callback(await ledger.subscribe(held_subject("*"), held))
        try:
            async with asyncio.timeout(bound_s):
                await folded.wait()
        except TimeoutError:
            raise DemoError(f"the coordinator did not read up to {position}") from None
        # Who is told nothing for so long believes nothing, and asks.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TRUSTED_S):
                await told.wait()
