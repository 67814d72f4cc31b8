"""A turn on P and D at the same time, and what becomes of it when one of them fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.router.support import BOUND_S, House, events, house, until

LATER_MS = int(time.time() * 1000) + 3_600_000


@asynccontextmanager
async def overlapping(prefill: int = 1, decode: int = 1, **settings: Any) -> AsyncIterator[House]:
    """A house that has answered one turn on each P, so that D can follow any of them."""
    async with house(prefill, decode, **{"overlap": True, **settings}) as h:
        for index in range(prefill):
            h[f"p{index}"].expires_ms = LATER_MS
        for index in range(prefill):
            assert (await h.ask(f"first of {index}")).status_code == 200
        assert all(h[f"p{i}"].got for i in range(prefill))
        for engine in h.engines.values():
            engine.got.clear()
            engine.at_work.clear()
        yield h


async def on_both(h: House, prompt: str) -> None:
    """Ask, and let d0 answer once p0 has been asked too."""
    h["d0"].gates[0] = asyncio.Event()
    number = len(h["p0"].got) + 1
    asked = asyncio.create_task(h.ask(prompt, stream=True))
    await until(lambda: len(h["p0"].got) == number)
    h["d0"].gates[0].set()
    await asked


async def test_decode_works_while_prefill_does() -> None:
    async with overlapping() as h:
        h["p0"].gates[-1] = asyncio.Event()
        h["d0"].gates[0] = asyncio.Event()
        asked = asyncio.create_task(h.ask("hello", stream=True))
        await asyncio.wait_for(h["d0"].at_work.wait(), BOUND_S)
        await asyncio.wait_for(h["p0"].at_work.wait(), BOUND_S)
        (of_p,), (of_d,) = h["p0"].got, h["d0"].got
        assert of_p.kv["publish"] == of_d.kv["follow"]
        assert len(of_p.kv["publish"]) == 32
        assert of_d.kv["hint"] == h["p0"].hint(1)
        assert "follow" not in of_p.kv
        assert "publish" not in of_d.kv
        assert of_p.kv["id"] == of_d.kv["id"]
        assert of_p.body["max_tokens"] == 1
        h["p0"].report = {"computed": 7, "miss": "diverged@3"}
        h["p0"].gates[-1].set()
        await until(lambda: h.router.prefill.engines[0].in_flight == 0)
        h["d0"].gates[0].set()
        answer = await asked
        assert events(answer.content)[-1] == "[DONE]"
        assert answer.headers["x-kvferry"] == "miss=diverged@3"
        assert b"follow" not in answer.content
        assert h.router.counters.turns["ok"] == 2


async def test_names_are_never_used_twice() -> None:
    async with overlapping() as h:
        for index in range(3):
            await on_both(h, f"prompt {index}")
        names = [got.kv["publish"] for got in h["p0"].got]
        assert len(set(names)) == 3
        assert names == [got.kv["follow"] for got in h["d0"].got]


async def test_a_client_cannot_name_a_prefill() -> None:
    async with overlapping(overlap=False) as h:
        params = {"kvferry": {"follow": "x", "publish": "y", "hint": {"address": "evil:1"}}}
        await h.ask("hello", kv_transfer_params=params)
        for name in ("p0", "d0"):
            kv = h[name].got[0].kv
            assert "follow" not in kv
            assert "publish" not in kv


@pytest.mark.parametrize("why", ["off", "no hint yet", "expired", "no expiry", "two prompts"])
async def test_otherwise_one_comes_after_the_other(why: str) -> None:
    async with house(overlap=why != "off") as h:
        h["p0"].expires_ms = {"expired": 1, "no expiry": 0}.get(why, LATER_MS)
        if why != "no hint yet":
            await h.ask("first")
        prompt = ["a", "b"] if why == "two prompts" else "hello"
        assert (await h.ask(prompt)).status_code == 200  # type: ignore[arg-type]
        assert "follow" not in h["d0"].got[-1].kv
        assert "publish" not in h["p0"].got[-1].kv


async def test_a_prefill_that_fails_is_tried_elsewhere_and_decode_begins_again() -> None:
    async with overlapping(prefill=2) as h:
        h["p0"].status = h["p1"].status = 500
        h["d0"].gates[0] = asyncio.Event()
        asked = asyncio.create_task(h.ask("hello", stream=True))
        await asyncio.wait_for(h["d0"].left.wait(), BOUND_S)
        h["d0"].gates.clear()
        answer = await asked
        assert answer.status_code == 200
        assert answer.headers["x-kvferry"] == "miss=prefill_down"
        # One P while D waited, and the other one in the second go.
        assert (len(h["p0"].got), len(h["p1"].got)) == (1, 1)
        assert "follow" not in h["d0"].got[-1].kv
        assert h.router.counters.turns["ok"] == 3


async def test_a_prefill_that_fails_when_decode_has_begun_costs_nothing() -> None:
    async with overlapping() as h:
        h["p0"].gates[-1] = asyncio.Event()
        h["d0"].gates[1] = asyncio.Event()
        async with h.client.stream(
            "POST", "/v1/completions", json={"model": "m", "prompt": "x", "stream": True}
        ) as answer:
            parts = answer.aiter_raw()
            first = await anext(parts)
            await h.kill("p0")
            h["d0"].gates[1].set()
            rest = b"".join([part async for part in parts])
        assert events(first + rest)[-1] == "[DONE]"
        assert len(h["d0"].got) == 1
        assert answer.headers["x-kvferry"] == "miss=no_report"


async def test_a_refusal_of_prefill_passes_verbatim_and_ends_decode() -> None:
    async with overlapping() as h:
        h["p0"].status = 400
        h["d0"].gates[0] = asyncio.Event()
        answer = await h.ask("hello", stream=True)
        assert answer.status_code == 400
        assert "p0 says no" in answer.json()["error"]["message"]
        await asyncio.wait_for(h["d0"].left.wait(), BOUND_S)


async def test_a_client_that_leaves_ends_both() -> None:
    async with overlapping() as h:
        h["p0"].gates[-1] = asyncio.Event()
        h["d0"].gates[0] = asyncio.Event()
        asked = asyncio.create_task(h.ask("hello", stream=True))
        await asyncio.wait_for(h["d0"].at_work.wait(), BOUND_S)
        await asyncio.wait_for(h["p0"].at_work.wait(), BOUND_S)
        asked.cancel()
        await asyncio.wait_for(h["p0"].left.wait(), BOUND_S)
        await asyncio.wait_for(h["d0"].left.wait(), BOUND_S)
        await until(lambda: h.router.counters.turns["aborted"] == 1)


async def test_a_decode_that_went_on_alone_ends_the_prefill() -> None:
    async with overlapping() as h:
        h["p0"].gates[-1] = asyncio.Event()
        answer = await h.ask("hello", stream=True)
        assert events(answer.content)[-1] == "[DONE]"
        await asyncio.wait_for(h["p0"].left.wait(), BOUND_S)
        assert h.router.counters.turns["ok"] == 2


async def test_another_decode_engine_follows_the_same_prefill() -> None:
    async with overlapping(decode=2) as h:
        h["p0"].gates[-1] = asyncio.Event()
        for name in ("d0", "d1"):
            h[name].break_at = 0
        asked = asyncio.create_task(h.ask("hello", stream=True))
        await until(lambda: bool(h["d0"].got and h["d1"].got))
        h["p0"].gates[-1].set()
        await asked
        assert h["d0"].got[0].kv["follow"] == h["d1"].got[0].kv["follow"]


async def test_an_engine_that_was_down_is_not_followed_before_it_said_who_it_is() -> None:
    async with overlapping() as h:
        await h.kill("p0")
        assert (await h.ask("while it is down")).status_code == 200
        await h.revive("p0")
        await until(lambda: h.router.prefill.any_up())
        await h.ask("again")
        assert "follow" not in h["d0"].got[-1].kv
        await on_both(h, "and again")
        assert h["d0"].got[-1].kv["follow"] == h["p0"].got[-1].kv["publish"]


async def test_the_next_turn_is_remembered_as_ever() -> None:
    async with overlapping(decode=2) as h:
        for name in ("d0", "d1"):
            h[name].gates[0] = asyncio.Event()

        async def turn(prompt: str, number: int) -> str:
            """Which D answered it, once P was asked too."""
            asked = asyncio.create_task(h.ask(prompt, stream=True))
            await until(lambda: len(h["p0"].got) == number)
            await until(lambda: sum(len(h[d].got) for d in ("d0", "d1")) == number)
            for name in ("d0", "d1"):
                h[name].gates[0].set()
            await asked
            await until(lambda: h.router.counters.turns["ok"] == 1 + number)
            return next(d for d in ("d0", "d1") if len(h[d].got) == number)

        home = await turn("hello", 1)
        assert await turn("hello, more", 2) == home
        assert h["p0"].got[1].kv["hint"] == h[home].hint(1)
