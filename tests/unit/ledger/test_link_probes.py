"""A link must find out that its client is deaf, and must never make it deaf itself."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.ledger.support import eventually

from kvferry.ledger import link, natsclient
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ports.log import Reply


async def ignore(subject: str, data: bytes, reply: Reply | None) -> None:
    """A handler for what is of no interest."""


async def test_waits_that_are_given_up_leave_the_connection_whole(ledger: JetStreamLedger) -> None:
    before = ledger._link.lives
    for number in range(50):
        asking = asyncio.create_task(ledger.subscribe(f"probe.{number}", ignore))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert await ledger.get("nothing") is None, "it still hears answers"
    assert ledger._link.lives == before


async def test_a_client_whose_reader_ended_is_replaced(
    ledger: JetStreamLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "PROBE_EVERY_S", 0.1)
    life = await ledger._link.life(1.0)
    await natsclient.cancel({life.client._reading_task})
    await eventually(lambda: life.lost.done(), "the deaf client is given up", 5.0)
    await eventually(ledger.connected, "another one is there")
    assert await ledger.get("nothing") is None
