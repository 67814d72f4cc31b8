"""Turns on real TileRT nodes, with leases from a real coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import httpx
from tests.e2e.plane import of
from tests.e2e.servers import router_server
from tests.tilert.parts import BOUND_S, WORDS, Parts, injected, pool_of, slot_story, turn_ended
from tests.tilert.rig import OR_NATIVE, TILERT, block_of, by_ours
from tests.tilert.standin import PrefillStandIn
from tests.unit.router.support import engine_server, events, start, until

from kvferry.core.events import SlotChanged


async def test_completions_and_chats_whole_and_streamed(parts: Parts) -> None:
    said = "\x05 the"
    async with pool_of(parts, "t0", "t1") as r:
        whole = await r.complete(max_tokens=5, return_token_ids=True)
        assert whole.status_code == 200, whole.text
        choice = whole.json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (said, "length")
        assert choice["token_ids"] == [5, *WORDS[:4]]
        assert whole.json()["usage"] == {
            "prompt_tokens": 5,
            "completion_tokens": 5,
            "total_tokens": 10,
        }
        streamed = await r.complete(
            max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        *parts_, usage, done = events(streamed.content)
        assert done == "[DONE]"
        assert "".join(p["choices"][0]["text"] for p in parts_) == said
        assert usage["usage"] == whole.json()["usage"]
        chat = await r.chat(max_tokens=5)
        assert chat.json()["choices"][0]["message"] == {"role": "assistant", "content": said}
        *deltas, done = events((await r.chat(max_tokens=5, stream=True)).content)
        assert deltas[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(d["choices"][0]["delta"].get("content", "") for d in deltas) == said
        assert deltas[-1]["choices"][0]["finish_reason"] == "length"
        body, mark = r.prefill.got[0], r.prefill.marks[0]
        assert (body["max_tokens"], body["temperature"], body["top_k"]) == (1, 1.0, 0)
        turn = whole.headers["x-kvferry-request"]
        assert mark.rid == f"{turn}-t1"
        node = whole.headers["x-kvferry"].rpartition("node=")[2]
        assert await injected(parts, node, {mark.rid}) == {mark.rid: block_of("hello")}
        metrics = (await r.client.get("/metrics")).text
        assert 'tilert_turns_total{end="answered"} 4' in metrics
    assert await slot_story(parts, turn, "replied") == ["granted", "confirmed", "replied"]
    ended = await turn_ended(parts, turn)
    assert (ended.decode_node, ended.outcome, ended.output_tokens) == (node, "ok", 5)
    assert ended.reuse == whole.headers["x-kvferry"]
    assert ended.reuse.endswith(f"pool=tilert node={node}")


async def test_requests_at_once_get_their_own_kv_on_one_node_and_on_two(parts: Parts) -> None:
    """What the original protocol allows (test_original_races) cannot happen under a lease."""
    for names in (("t0",), ("t0", "t1")):
        async with pool_of(parts, *names) as r:
            letters = "abcdef"
            answers = await asyncio.gather(*(r.complete(one * 9) for one in letters))
            assert [a.status_code for a in answers] == [200] * len(letters)
            wanted = {
                f"{a.headers['x-kvferry-request']}-t1": block_of(one)
                for a, one in zip(answers, letters, strict=True)
            }
            assert len(set(wanted.values())) == len(letters)
            got = [await injected(parts, name, set(wanted)) for name in names]
            assert {rid: block for one in got for rid, block in one.items()} == wanted
            used = {a.headers["x-kvferry"].rpartition("node=")[2] for a in answers}
            assert used == set(names)
        # Nothing of a request goes to a node before the one ahead of it is done there.
        seen = await asyncio.to_thread(parts.plane.events)
        for name in names:
            held = ""
            for change in of(seen, SlotChanged, node=name):
                if change.change == "granted":
                    assert not held, f"{change.request} was lent what {held} had"
                    held = change.request
                elif change.change in ("replied", "cancelled", "refused_before_admission"):
                    assert held == change.request
                    held = ""


async def test_a_full_pool_is_429_or_native_decode(parts: Parts) -> None:
    node = parts.nodes["t0"]
    async with pool_of(parts, "t0", wait_max_s=1.0, waiting_max=1) as r:
        node.pause()
        first = asyncio.create_task(r.complete("busy", stream=True, max_tokens=9))
        await until(node.decoding, BOUND_S)
        late = await r.complete("late")
        assert late.status_code == 429, late.text
        assert int(late.headers["retry-after"]) >= 1
        assert "every TileRT node is in use" in late.json()["error"]["message"]
        waiting = [asyncio.create_task(r.complete("one of two")) for _ in range(2)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert {one.result().status_code for one in done} == {429}
        native = await r.complete("native", kvferry=OR_NATIVE)
        assert native.json()["choices"][0]["text"] == "answer of d0"
        assert native.headers["x-kvferry"].endswith("pool=native why=full")
        assert "tilert" not in r.prefill.got[-1]["kv_transfer_params"]
        node.resume()
        assert events((await first).content)[-1] == "[DONE]"
        await asyncio.gather(*waiting)
        assert (await r.complete("free")).status_code == 200


async def test_a_node_that_somebody_uses_without_a_lease_is_passed_over(parts: Parts) -> None:
    node = parts.nodes["t0"]
    assert parts.sender.send_to(node, "foreign", 2.0) == "sent"
    node.pause()
    body = {"rid": "foreign", "first_token_id": 1, "max_tokens": 5}
    async with httpx.AsyncClient(timeout=BOUND_S, trust_env=False) as other:
        using = asyncio.create_task(other.post(f"{node.url}/pd/decode", json=body))
        await until(node.decoding, BOUND_S)
        async with pool_of(parts, "t0", "t1", wait_max_s=1.0, foreign_pause_s=BOUND_S) as r:
            answer = await r.complete("elsewhere")
            assert answer.headers["x-kvferry"].endswith("pool=tilert node=t1")
            assert {m.port for m in r.prefill.marks} == {parts.nodes["t1"].ctrl_port}
            health = (await r.client.get("/health")).json()
            assert "foreign" in health["engines"]["tilert"]["t0"]["why"]
        async with pool_of(parts, "t0", wait_max_s=1.0, foreign_pause_s=0.5) as r:
            refused = await r.complete("nowhere")
            assert refused.status_code == 429, refused.text
            assert r.prefill.marks == []
            node.resume()
            assert (await using).json()["token_ids"] == [1, *WORDS[:4]]
            assert (await r.complete("after it")).status_code == 200


async def test_the_command_serves_the_pool_and_stops_cleanly(parts: Parts, tmp_path: Path) -> None:
    prefill = await start(engine_server(PrefillStandIn(by_ours(parts.prefill)).app()))
    node = parts.nodes["t1"]
    where = SimpleNamespace(name="p0", url=prefill.url)
    decode = SimpleNamespace(name="d0", url=prefill.url)
    router = router_server(
        parts.plane.url,
        [where],
        [decode],
        tmp_path,
        *("--node", "command", "--tilert", f"t1={node.url},ctrl={node.ctrl_port}"),
        *("--tokenizer", str(parts.tokenizer)),
    )
    try:
        await asyncio.to_thread(router.wait_ready)
        body = {"model": "m", "prompt": "hello", "max_tokens": 5, "kvferry": TILERT}
        async with httpx.AsyncClient(timeout=BOUND_S, trust_env=False) as client:
            answer = await client.post(f"{router.url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == "\x05 the"
        router.terminate()
        assert await asyncio.to_thread(router.wait) == 0, router.tail()
    finally:
        router.kill()
        await prefill.stop()
