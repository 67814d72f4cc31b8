"""Engines that are down, break off, refuse or freeze, and clients that leave."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.router.support import BOUND_S, events, house, until


async def test_another_prefill_engine_takes_over() -> None:
    async with house(prefill=2) as h:
        await h.kill("p0")
        answers = [await h.ask(f"prompt {i}") for i in range(2)]
        assert [a.status_code for a in answers] == [200, 200]
        assert len(h["p1"].got) == 2
        assert all("hint" in got.kv for got in h["d0"].got)


async def test_without_prefill_decode_serves_alone_with_the_sessions_hint() -> None:
    async with house() as h:
        await h.ask("hello")
        await h.kill("p0")
        answer = await h.ask("hello, more")
        assert answer.status_code == 200
        assert answer.headers["x-kvferry"] == "miss=prefill_down"
        assert h["d0"].got[1].kv["hint"] == h["d0"].hint(1)
        await h.revive("p0")
        await until(lambda: h.router.prefill.any_up())
        answer = await h.ask("hello, more and more")
        assert answer.headers["x-kvferry"] != "miss=prefill_down"


async def test_a_prefill_engine_that_answers_5xx_is_passed_over() -> None:
    async with house() as h:
        h["p0"].status = 500
        answer = await h.ask()
        assert answer.status_code == 200
        assert answer.headers["x-kvferry"] == "miss=prefill_down"


@pytest.mark.parametrize("stream", [False, True])
async def test_another_decode_engine_pulls_from_the_same_hint(stream: bool) -> None:
    async with house(decode=2) as h:
        await h.ask("hello")
        home = next(name for name in ("d0", "d1") if h[name].got)
        other = {"d0": "d1", "d1": "d0"}[home]
        await h.kill(home)
        answer = await h.ask("hello, more", stream=stream)
        assert answer.status_code == 200
        assert h[other].got[0].kv["hint"] == h["p0"].hint(2)


async def test_a_stream_that_breaks_before_its_first_event_is_tried_elsewhere() -> None:
    async with house(decode=2) as h:
        for name in ("d0", "d1"):
            h[name].break_at = 0
        h["d1"].break_at = -1
        answer = await h.ask(stream=True)
        assert events(answer.content)[-1] == "[DONE]"
        assert len(h["d1"].got) == 1


@pytest.mark.parametrize("how", ["break_at", "end_early"])
async def test_a_broken_stream_ends_with_an_error_event(how: str) -> None:
    async with house() as h:
        if how == "break_at":
            h["d0"].break_at = 2
        else:
            h["d0"].end_early = True
        answer = await h.ask(stream=True)
        assert answer.status_code == 200
        *_, error, done = events(answer.content)
        assert done == "[DONE]"
        assert "d0" in error["error"]["message"]
        assert h.router.counters.turns["error"] == 1


async def test_all_decode_engines_down_is_503_with_the_pool_and_the_cure() -> None:
    async with house(decode=2, dead=("d0", "d1")) as h:
        answer = await h.ask()
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert "no decode engine" in error["message"]
        assert "d0" in error["message"]
        assert "/health" in error["message"]
        assert error["code"] == 503
        assert set(error) == {"message", "type", "param", "code"}


async def test_a_request_does_not_try_every_engine() -> None:
    async with house(decode=4, attempts_max=2) as h:
        for index in range(4):
            h[f"d{index}"].status = 500
        answer = await h.ask()
        assert answer.status_code == 500
        assert "says no" in answer.json()["error"]["message"]
        assert sum(len(h[f"d{index}"].got) for index in range(4)) == 2


@pytest.mark.parametrize("name", ["p0", "d0"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_passes_verbatim(name: str, stream: bool) -> None:
    async with house() as h:
        h[name].status = 422
        answer = await h.ask(stream=stream)
        assert answer.status_code == 422
        assert answer.json() == {"error": {"message": f"{name} says no"}}
        assert answer.headers["x-kvferry-request"].startswith("kvf-")


async def test_a_frozen_decode_engine_is_given_up_and_another_serves() -> None:
    # Two probes: when this machine stands still, the engine which serves misses one at the most.
    async with house(
        decode=2, probe_timeout_s=1.0, probe_every_s=0.1, probe_timeouts_max=2, lost_after_s=0.5
    ) as h:
        frozen = {name: asyncio.Event() for name in ("d0", "d1")}
        for name, until_thawed in frozen.items():
            h[name].frozen = until_thawed
        asking = asyncio.create_task(h.ask())
        await until(lambda: bool(h["d0"].got or h["d1"].got))
        home = "d0" if h["d0"].got else "d1"
        other = {"d0": "d1", "d1": "d0"}[home]
        h[other].frozen = None
        frozen[other].set()  # A probe that waits already is answered too.
        answer = await asyncio.wait_for(asking, BOUND_S)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"] == f"answer of {other}"
        frozen[home].set()


async def test_a_leaving_client_cancels_prefill() -> None:
    async with house() as h:
        h["p0"].gates = {-1: asyncio.Event()}
        asking = asyncio.create_task(h.ask())
        await asyncio.wait_for(h["p0"].at_work.wait(), BOUND_S)
        asking.cancel()
        await asyncio.wait_for(h["p0"].left.wait(), BOUND_S)
        await until(lambda: h.router.counters.turns["aborted"] == 1)
        assert not h["d0"].got
        assert h.router.prefill.engines[0].in_flight == 0


async def test_a_leaving_client_cancels_a_waiting_decode() -> None:
    async with house() as h:
        h["d0"].gates = {-1: asyncio.Event()}
        asking = asyncio.create_task(h.ask())
        await asyncio.wait_for(h["d0"].at_work.wait(), BOUND_S)
        asking.cancel()
        await asyncio.wait_for(h["d0"].left.wait(), BOUND_S)
        await until(lambda: h.router.decode.engines[0].in_flight == 0)


async def test_closing_a_raw_socket_cancels_a_running_stream() -> None:
    async with house() as h:
        h["d0"].gates = {1: asyncio.Event()}
        host, port = h.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"prompt": "hello", "stream": true}'
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
        await asyncio.wait_for(reader.readuntil(b'"t0"'), BOUND_S)
        writer.close()
        await asyncio.wait_for(h["d0"].left.wait(), BOUND_S)
        await until(lambda: h.router.counters.turns["aborted"] == 1)
        # What D had computed is still worth finding: the next turn goes there.
        assert len(h.router.book) == 1
