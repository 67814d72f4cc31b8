"""Waits between attempts grow within their bounds."""

from __future__ import annotations

import pytest

from kvferry.node.agent import backoff
from kvferry.node.agent.settings import NodeSettings


@pytest.mark.parametrize(
    ("longest", "waits"),
    [((), [0.1, 0.2, 0.4, 0.5, 0.5]), ((1,), [0.1, 0.5, 0.5, 0.5, 0.5])],
    ids=["each", "one-that-will-not-help"],
)
async def test_each_wait_is_twice_as_long_up_to_the_most(
    monkeypatch: pytest.MonkeyPatch, longest: tuple[int, ...], waits: list[float]
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(backoff.asyncio, "sleep", sleep)
    bounds = NodeSettings(nats_url="", node="d0", reconnect_min_s=0.1, reconnect_max_s=0.5)
    tried = backoff.Backoff(bounds)
    for number in range(len(waits)):
        await tried.wait(longest=number in longest)
    assert slept == pytest.approx(waits)
