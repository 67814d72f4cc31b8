"""A coordinator that is served: what its process does around it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.unit.daemon.support import FakeNode, quick, until

from kvferry.cli.serving import serve_coordinator
from kvferry.cli.stopping import StopRequest
from kvferry.ledger.memory import MemoryLog


@pytest.fixture
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
async def test_what_was_folded_is_not_looked_through_again() -> None:
    log = MemoryLog()
    await FakeNode(log, "d0").join()
    with StopRequest() as stop:
        serving = asyncio.create_task(
            serve_coordinator(cast(Any, log), quick(), stop, lambda: None)
        )
        await until(gc.get_freeze_count, "it settles")
        stop.event.set()
        await serving
