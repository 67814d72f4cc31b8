"""What waits for its turn is done once: in time, or when the node ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.node_agent.support import settings, until

from kvferry.node.plans.client import PlanClient


@asynccontextmanager
async def client() -> AsyncIterator[PlanClient]:
    plans = PlanClient(settings("nats://127.0.0.1:1"))
    plans.open(asyncio.get_running_loop())
    try:
        yield plans
    finally:
        await plans.close()


async def test_what_is_to_be_done_later_is_done_once_in_time_or_at_the_end() -> None:
    done: list[str] = []
    async with client() as plans:
        assert plans.later(1.0, lambda: done.append("soon"))
        assert plans.later(60_000.0, lambda: done.append("late"))
        await until(lambda: done == ["soon"], "it was time")
    assert done == ["soon", "late"], "whoever waits must hear when it is over"
    assert not plans.later(1.0, lambda: done.append("never"))


async def test_an_error_of_one_that_waited_ends_nobody_else() -> None:
    done: list[str] = []
    async with client() as plans:
        assert plans.later(60_000.0, lambda: [].pop())
        assert plans.later(60_000.0, lambda: done.append("other"))
    assert done == ["other"]


async def test_no_more_wait_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.node.plans.client.LATER_MAX", 1)
    async with client() as plans:
        assert plans.later(60_000.0, lambda: None)
        assert not plans.later(60_000.0, lambda: None)
