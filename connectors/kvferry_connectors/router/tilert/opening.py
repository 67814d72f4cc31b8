"""Brings a router's TileRT pool up and down."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from kvferry_connectors.router.settings import RouterSettings
from kvferry_connectors.router.tilert.model import Model
from kvferry_connectors.router.tilert.pool import TilertPool


@asynccontextmanager
async def open_tilert(
    settings: RouterSettings, model: Model | None, client: httpx.AsyncClient
) -> AsyncIterator[TilertPool | None]:
    """The pool with its leases; ``None`` where the router has no TileRT nodes."""
    if settings.tilert is None or model is None:
        yield None
        return
    # Imported here, so that a router without TileRT nodes and a ledger runs without NATS.
    from kvferry.node.slots.client import SlotClient

    slots = SlotClient(settings.in_ledger(), incarnation=secrets.token_hex(8))
    try:
        await slots.start()
        pool = TilertPool(settings.tilert, model, client, slots)
        try:
            await pool.start()
            yield pool
        finally:
            await pool.close()
    finally:
        await slots.close()
