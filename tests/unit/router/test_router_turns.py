"""A turn's way through P and D, and what reaches the client."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.router.support import BOUND_S, events, house


async def test_prefill_gets_one_token_and_decode_the_original() -> None:
    async with house() as h:
        answer = await h.ask(
            stop=["x"],
            min_tokens=4,
            n=2,
            logprobs=3,
            echo=True,
            temperature=0.5,
            stream_options={"include_usage": True},
        )
        assert answer.status_code == 200
        p, d = h["p0"].got[0], h["d0"].got[0]
        assert p.body == {
            "model": "m",
            "prompt": "hello",
            "temperature": 0.5,
            "stream": False,
            "n": 1,
            "max_tokens": 1,
            "kv_transfer_params": p.body["kv_transfer_params"],
        }
        assert d.body["stop"] == ["x"]
        assert (d.body["n"], d.body["max_tokens"]) == (2, 5)
        assert "stream" not in d.body
        assert p.path == d.path == "/v1/completions"


async def test_the_hint_goes_from_prefill_to_decode_and_the_ids_can_be_joined() -> None:
    async with house() as h:
        answer = await h.ask()
        p, d = h["p0"].got[0], h["d0"].got[0]
        turn = answer.headers["x-kvferry-request"]
        assert "hint" not in p.kv
        assert d.kv["hint"] == h["p0"].hint(1)
        assert p.kv["id"] == d.kv["id"] == turn
        assert p.kv["session"] == d.kv["session"] != ""
        assert p.headers["x-request-id"] == f"{turn}-p"
        assert d.headers["x-request-id"] == f"{turn}-d"


async def test_chat_hands_over_the_token_ids() -> None:
    async with house() as h:
        await h.chat("hi", max_completion_tokens=9)
        p, d = h["p0"].got[0], h["d0"].got[0]
        assert p.body["max_completion_tokens"] == 1
        assert p.body["return_token_ids"] is True
        assert d.body["kv_transfer_params"]["prompt_token_ids"] == [1, 2, 3]
        assert "return_token_ids" not in d.body
        assert d.body["max_completion_tokens"] == 9


@pytest.mark.parametrize("option", [{"echo": True}, {"truncate_prompt_tokens": 5}])
async def test_token_ids_are_not_handed_over_where_they_could_differ(option: dict) -> None:
    async with house() as h:
        await h.chat("hi", **option)
        assert "prompt_token_ids" not in h["d0"].got[0].body["kv_transfer_params"]


async def test_handing_over_token_ids_can_be_switched_off() -> None:
    async with house(hand_over_tokens=False) as h:
        await h.chat("hi")
        assert "return_token_ids" not in h["p0"].got[0].body
        assert "prompt_token_ids" not in h["d0"].got[0].body["kv_transfer_params"]


async def test_a_clients_own_params_reach_no_engine() -> None:
    forged = {"kvferry": {"hint": {"secret": "forged"}}, "do_remote_prefill": True}
    async with house() as h:
        await h.ask(kv_transfer_params=forged, vllm_xargs={"kv_transfer_params": "forged", "a": 1})
        for name in ("p0", "d0"):
            got = h[name].got[0].body
            assert "forged" not in json.dumps(got)
            assert set(got["kv_transfer_params"]) == {"kvferry"}
            assert got["vllm_xargs"] == {"a": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_no_hint_reaches_a_client(stream: bool) -> None:
    async with house() as h:
        for _ in range(2):
            answer = await h.ask(stream=stream)
            shown = answer.content + repr(answer.headers).encode()
            assert b"secret" not in shown
            assert b"kv_transfer_params" not in shown
        # The comparison has teeth: the engines did send hints, and the router kept them.
        assert h["p0"].got[1].kv["hint"] == h["d0"].hint(1)


async def test_a_stream_passes_chunk_by_chunk() -> None:
    async with house() as h:
        h["d0"].gates = {index: asyncio.Event() for index in range(3)}
        h["d0"].gates[0].set()
        body = {"model": "m", "prompt": "hello", "stream": True}
        async with h.client.stream("POST", "/v1/completions", json=body) as answer:
            parts = answer.aiter_raw()
            first = await asyncio.wait_for(anext(parts), BOUND_S)
            # D cannot have produced the second chunk: its gate is still shut.
            assert events(first)[0]["choices"][0]["text"] == "t0"
            h["d0"].gates[1].set()
            second = await asyncio.wait_for(anext(parts), BOUND_S)
            assert events(second)[0]["choices"][0]["text"] == "t1"
            h["d0"].gates[2].set()
            rest = b"".join([part async for part in parts])
        assert events(rest)[-1] == "[DONE]"
        assert answer.headers["content-type"].startswith("text/event-stream")


async def test_text_that_looks_like_params_passes_unchanged() -> None:
    async with house() as h:
        answer = await h.ask("what is kv_transfer_params?", stream=True)
        assert [e["choices"][0]["text"] for e in events(answer.content)[:-1]] == ["t0", "t1", "t2"]


@pytest.mark.parametrize(
    ("report", "line"),
    [
        ({"pulled": 2039, "from": "d0", "ms": 31.2}, "pulled=2039 from=d0 31ms"),
        ({"local": 2039}, "local=2039"),
        ({"computed": 9, "miss": "diverged@1536"}, "miss=diverged@1536"),
        ({"local": 16, "pulled": 32, "from": "d1", "ms": 4.0}, "local=16 pulled=32 from=d1 4ms"),
        ({"pulled": 5, "from": "d0\r\nx: y", "ms": 1}, "pulled=5 from=d0__x:_y 1ms"),
        ({"pulled": "many", "ms": "fast"}, "miss=nothing_held"),
    ],
)
async def test_the_header_says_what_was_pulled(report: dict, line: str) -> None:
    async with house() as h:
        h["p0"].report = report
        for stream in (False, True):
            answer = await h.ask(stream=stream)
            assert answer.headers["x-kvferry"] == line


async def test_reuse_off_reaches_prefill_without_a_hint() -> None:
    async with house() as h:
        await h.ask()
        await h.ask("hello and more", headers={"x-kvferry-reuse": "off"})
        p, d = h["p0"].got[1], h["d0"].got[1]
        assert p.kv["reuse"] == "off"
        assert "hint" not in p.kv
        assert d.kv["hint"] == h["p0"].hint(2)
        assert "reuse" not in d.kv
        wrong = await h.ask(headers={"x-kvferry-reuse": "maybe"})
        assert wrong.status_code == 400


async def test_a_batch_of_prompts_goes_straight_to_decode() -> None:
    async with house() as h:
        answer = await h.client.post("/v1/completions", json={"prompt": ["a", "b"]})
        assert answer.headers["x-kvferry"] == "miss=unshareable"
        assert not h["p0"].got
        assert "hint" not in h["d0"].got[0].kv


async def test_credentials_and_traces_pass_and_nothing_else() -> None:
    async with house() as h:
        headers = {"authorization": "Bearer k", "traceparent": "00-a-b-01", "x-odd": "1"}
        await h.ask(headers=headers)
        for name in ("p0", "d0"):
            got = h[name].got[0].headers
            assert got["authorization"] == "Bearer k"
            assert got["traceparent"] == "00-a-b-01"
            assert "x-odd" not in got


async def test_the_routers_own_key_replaces_the_clients() -> None:
    async with house(engine_api_key="house") as h:
        await h.ask(headers={"authorization": "Bearer k"})
        assert h["d0"].got[0].headers["authorization"] == "Bearer house"
