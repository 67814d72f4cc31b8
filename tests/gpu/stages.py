"""What the time of pulls was spent on, read from the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from tests.gpu.figures import spread

from kvferry.cli.context import find_ledger, open_ledger
from kvferry.core.events import Transferred
from kvferry.replay.explain import explain

STAGES = ("pin_ms", "read_ms", "settle_ms", "total_ms")
STORED_S = 5.0
"""Longest wait for the ledger to hold what an engine has just told."""


def stages(nats: str, requests: Sequence[str]) -> dict[str, Any]:
    """Spread of each stage over the pulls of these requests, with their backend and rate.

    Empty where none of them pulled.
    """
    found = asyncio.run(_pulls(nats, requests))
    if not found:
        return {}
    rates = [pull.bytes / pull.read_ms / 1e6 for pull in found if pull.read_ms]
    return {
        **{stage: spread([getattr(pull, stage) for pull in found]) for stage in STAGES},
        "read_gb_per_s": spread(rates) if rates else {},
        "backends": sorted({pull.backend for pull in found}),
    }


async def _pulls(nats: str, requests: Sequence[str]) -> list[Transferred]:
    async with open_ledger(find_ledger(nats)) as ledger:
        found = []
        for request in requests:
            until = time.monotonic() + STORED_S
            while True:
                story = await explain(ledger, request)
                bodies = [item.body for item in story.items if isinstance(item.body, Transferred)]
                if bodies or time.monotonic() > until:
                    break
                await asyncio.sleep(0.1)
            found += bodies
        return found
