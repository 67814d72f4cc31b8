"""However a turn on a TileRT node ends, the node's slot ends as it may, and the client hears."""

from __future__ import annotations

import asyncio
import json
import time

from tests.tilert.nodes import DecodeNode, StartNode
from tests.tilert.parts import BOUND_S, WORDS, Parts, pool_of, slot_story, turn_ended
from tests.tilert.rig import OR_NATIVE, TILERT, Rig
from tests.unit.router.support import until

from kvferry_connectors.tilert.marks import Mark

FAST_S = 8.0
"""An idle limit for tests that wait for it; TileRT's own is 120 s."""


async def test_a_client_that_leaves_in_mid_stream_ends_the_decode(parts: Parts) -> None:
    node = parts.nodes["t0"]
    async with pool_of(parts, "t0") as r:
        node.pause()
        body = {"model": "m", "prompt": "left", "max_tokens": 900, "stream": True}
        async with r.client.stream(
            "POST", "/v1/completions", json={**body, "kvferry": TILERT}
        ) as answer:
            turn = answer.headers["x-kvferry-request"]
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    break
        await until(lambda: node.status()["status"] == "idle", BOUND_S)
        assert await slot_story(parts, turn, "cancelled") == ["granted", "confirmed", "cancelled"]
        assert (await turn_ended(parts, turn)).outcome == "aborted"
        node.resume()
        assert (await r.complete("next")).status_code == 200


async def test_a_client_that_leaves_during_prefill_leaves_no_kv_behind(parts: Parts) -> None:
    outcomes: list[str] = []
    released = asyncio.Event()

    async def send(mark: Mark, prompt: list[int]) -> None:
        if prompt[:4] == list(b"gone"):
            await released.wait()
        outcome = await asyncio.to_thread(
            parts.sender.send, mark.host, mark.port, mark.rid, len(prompt), float(prompt[0])
        )
        outcomes.append(outcome)

    async with pool_of(parts, "t0", send=send) as r:
        asking = asyncio.create_task(r.complete("gone"))
        await until(lambda: bool(r.prefill.marks), BOUND_S)
        asking.cancel()
        turn = r.prefill.marks[0].rid.removesuffix("-t1")
        assert await slot_story(parts, turn, "cancelled") == [
            "granted",
            "cancelled",
        ]
        # The sender comes late, and is turned away.
        released.set()
        await until(lambda: bool(outcomes), BOUND_S)
        assert outcomes == ["cancelling"]
        assert (await r.complete("next")).status_code == 200
        assert outcomes == ["cancelling", "sent"]


async def test_what_tilert_cannot_honour_is_refused_by_name_or_decoded_natively(
    parts: Parts,
) -> None:
    async with pool_of(parts, "t0") as r:
        refused = await r.complete(stop=["x"])
        assert refused.status_code == 501
        assert '"stop"' in refused.json()["error"]["message"]
        assert r.prefill.got == []
        native = await r.complete(stop=["x"], kvferry=OR_NATIVE)
        assert native.headers["x-kvferry"].endswith("pool=native why=cannot")
        assert native.json()["choices"][0]["text"] == "answer of d0"
        by_header = await r.complete(kvferry={}, headers={"x-kvferry-pool": "tilert"}, logprobs=2)
        assert '"logprobs"' in by_header.json()["error"]["message"]
        # A server with a reasoning parser shows it with its first token.
        r.prefill.message = {"role": "assistant", "content": None, "reasoning": "x"}
        parsed = await r.chat()
        assert parsed.status_code == 501
        assert "reasoning" in parsed.json()["error"]["message"]
        turn = parsed.headers["x-kvferry-request"]
        story = await slot_story(parts, turn, "cancelled")
        assert story == ["granted", "cancelled"]
        native = await r.chat(kvferry=OR_NATIVE)
        assert native.headers["x-kvferry"].endswith("pool=native why=parsed")


async def test_kv_that_prefill_says_it_did_not_send_is_not_waited_for(parts: Parts) -> None:
    async with pool_of(parts, "t0", send=send_nothing) as r:
        r.prefill.said = {"state": "refused", "reason": "busy", "detail": "with another"}
        answer = await r.complete()
        assert answer.status_code == 502
        assert "busy: with another" in answer.json()["error"]["message"]
        r.prefill.said = {"state": "refused", "reason": "sequence_too_long", "detail": "9 > 8"}
        answer = await r.complete()
        assert answer.status_code == 400
        assert "no room: 9 > 8" in answer.json()["error"]["message"]
        turn = answer.headers["x-kvferry-request"]
        assert await slot_story(parts, turn, "cancelled") == ["granted", "cancelled"]
        native = await r.complete(kvferry=OR_NATIVE)
        assert native.headers["x-kvferry"].endswith("pool=native why=too_long")


async def send_nothing(mark: Mark, prompt: list[int]) -> None:
    """The KV stays where it is."""


async def test_a_request_that_prefill_refuses_gives_the_slot_back(parts: Parts) -> None:
    async with pool_of(parts, "t0") as r:
        r.prefill.status = 400
        answer = await r.complete()
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "prefill says no")
        turn = answer.headers["x-kvferry-request"]
        last = "refused_before_admission"
        assert await slot_story(parts, turn, last) == ["granted", last]
        r.prefill.status = 503
        broken = await r.complete()
        assert broken.status_code == 503
        turn = broken.headers["x-kvferry-request"]
        story = await slot_story(parts, turn, "cancelled")
        assert story == ["granted", "cancelled"]
        r.prefill.status = 200
        assert (await r.complete()).status_code == 200


async def test_an_answer_that_ends_with_its_first_token(parts: Parts) -> None:
    async with pool_of(parts, "t0") as r:
        r.prefill.finish = "stop"
        answer = await r.complete(max_tokens=900)
        choice = answer.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        r.prefill.finish = "length"
        assert (await r.complete()).json()["choices"][0]["text"] == "\x05 th"


async def test_kv_that_never_comes_is_told_and_the_node_is_free_again(parts: Parts) -> None:
    async def send(mark: Mark, prompt: list[int]) -> None:
        if prompt[0] != ord("n"):
            await asyncio.to_thread(
                parts.sender.send, mark.host, mark.port, mark.rid, len(prompt), 1.0
            )

    async with pool_of(parts, "t0", send=send, kv_wait_s=1.0) as r:
        answer = await r.complete("never sent")
        assert answer.status_code == 502
        assert "got no KV from prefill" in answer.json()["error"]["message"]
        turn = answer.headers["x-kvferry-request"]
        story = await slot_story(parts, turn, "cancelled")
        assert story == ["granted", "confirmed", "cancelled"]
        assert (await r.complete("sent")).status_code == 200


async def test_a_node_killed_in_mid_decode_is_not_lent_before_it_was_idle_long_enough(
    parts: Parts, decode_node: StartNode
) -> None:
    node = await asyncio.to_thread(decode_node, spy={"tokens": WORDS})
    parts.nodes["t9"] = node
    async with pool_of(parts, "t9", idle_limit_s=FAST_S, wait_max_s=10.0) as r:
        node.pause()
        began = time.monotonic()
        # On a busy machine a lease with so short a limit may get lost before it begins.
        for _ in range(5):
            turn, last = await killed_in_mid_stream(r, node)
            if last:
                break
        *_, error, done = last
        assert done == "[DONE]"
        assert "t9" in json.loads(error)["error"]["message"]
        assert (await turn_ended(parts, turn)).outcome == "error"
        story = await slot_story(parts, turn, "abandoned")
        assert story[-1] == "abandoned"
        await until(lambda: not r.pool.nodes["t9"].engine.up, BOUND_S)
        down = await r.complete("down")
        assert (down.status_code, "retry-after" in down.headers) == (503, True)
        native = await r.complete("down", kvferry=OR_NATIVE)
        assert native.headers["x-kvferry"].endswith("pool=native why=down")
        node.resume()
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(node.wait_ready)

        async def back() -> bool:
            return (await r.complete("back")).status_code == 200

        await until(back, BOUND_S)
        assert time.monotonic() - began > FAST_S
        assert await slot_story(parts, turn, "idle") == [*story, "idle"]


async def killed_in_mid_stream(r: Rig, node: DecodeNode) -> tuple[str, list[str]]:
    """A turn whose node is killed after the first token, and what its client got after that;
    nothing if it did not begin."""
    body = {"model": "m", "prompt": "stream", "max_tokens": 900, "stream": True}
    async with r.client.stream(
        "POST", "/v1/completions", json={**body, "kvferry": TILERT}
    ) as answer:
        turn = answer.headers["x-kvferry-request"]
        if answer.status_code != 200:
            return turn, []
        lines = answer.aiter_lines()
        assert json.loads((await anext(lines))[6:])["choices"][0]["text"] == "\x05"
        await asyncio.to_thread(node.kill)
        return turn, [line[6:] async for line in lines if line]


async def test_a_node_that_fails_before_its_first_byte_is_replaced_by_native_decode(
    parts: Parts, decode_node: StartNode
) -> None:
    node = await asyncio.to_thread(decode_node, spy={"tokens": WORDS})
    parts.nodes["t8"] = node
    async with pool_of(parts, "t8") as r:
        node.pause()
        asking = asyncio.create_task(r.complete("whole", max_tokens=900, kvferry=OR_NATIVE))
        await until(node.decoding, BOUND_S)
        await asyncio.to_thread(node.kill)
        answer = await asking
        assert answer.json()["choices"][0]["text"] == "answer of d0"
        assert answer.headers["x-kvferry"].endswith("pool=native why=failed")
