"""How `/pd/decode` and what becomes of it end a slot's lease. The node here is made up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.unit.router.support import engine_server, start

from kvferry.node.slots import CANCELLED, REPLIED, Slot, SlotNode
from kvferry_connectors.router.errors import EngineFailed
from kvferry_connectors.router.tilert.call import DecodeCall, NodeBusy
from kvferry_connectors.router.tilert.node import Node, decode_content
from kvferry_connectors.router.tilert.settings import TilertSettings
from kvferry_connectors.router.tilert.tokens import Detokenizer

RID = "k1-t1"


@dataclass
class MadeUpNode:
    """Answers `/pd/decode` with ``lines`` or ``refusals``, one after the other."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    got: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    hold: asyncio.Event | None = None

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/pd/decode", self._decode, methods=["POST"]),
                Route("/pd/cancel", self._cancel, methods=["POST"]),
            ]
        )

    async def _decode(self, request: Request) -> Response:
        self.got.append(await request.json())
        if self.refusals:
            status, said = self.refusals.pop(0)
            return JSONResponse(said, status)
        return StreamingResponse(self._stream(), media_type="application/x-ndjson")

    async def _stream(self) -> AsyncIterator[str]:
        for line in self.lines:
            if self.hold is not None and "done" in line:
                await self.hold.wait()
            yield json.dumps(line) + "\n"

    async def _cancel(self, request: Request) -> Response:
        self.cancelled.append((await request.json())["rid"])
        if self.hold is not None:
            self.hold.set()
        return JSONResponse({"cancelled": RID})


@dataclass
class Called:
    call: DecodeCall
    node: MadeUpNode
    slot: Slot


@asynccontextmanager
async def called(node: MadeUpNode, *, sure: bool = True, **bounds: float) -> AsyncIterator[Called]:
    served = await start(engine_server(node.app()))
    slot_node = SlotNode(name="t0", http=served.url, control="127.0.0.1:1")
    asked_s = time.monotonic() if sure else time.monotonic() - 1000
    slot = Slot(slot_node, 1, "k1", "", asked_s)
    settings = TilertSettings(nodes=(slot_node,), tokenizer="unused", **bounds)
    content = decode_content(RID, 5, 9, {"temperature": 1.0}, 60.0)
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            call = DecodeCall(client, settings, Node(slot_node), slot, RID, content)
            yield Called(call, node, slot)
    finally:
        await served.stop()


async def listen(call: DecodeCall) -> list[int]:
    return [one async for ids in call.tokens() for one in ids]


DONE = {"done": True, "n": 3, "seq_len": 9, "finish_reason": "length"}
TOKENS = [{"t": [5]}, {"t": [6, 7]}]


async def test_tokens_come_and_the_lease_ends_with_the_reply() -> None:
    async with called(MadeUpNode([*TOKENS, DONE])) as c:
        ended, heard = await asyncio.gather(c.call.run(), listen(c.call))
        assert (ended.how, heard, c.call.finish) == (REPLIED, [5, 6, 7], "length")
        assert c.node.got == [
            {
                "rid": RID,
                "first_token_id": 5,
                "max_tokens": 9,
                "sampling": {"temperature": 1.0},
                "timeout_s": 60.0,
                "stream": True,
            }
        ]
        assert c.node.cancelled == []


async def test_a_first_token_that_ends_the_answer_is_sent_but_not_counted() -> None:
    lines = [{"t": [5]}, {**DONE, "n": 0, "finish_reason": "stop"}]
    async with called(MadeUpNode(lines)) as c:
        ended, heard = await asyncio.gather(c.call.run(), listen(c.call))
        assert (ended.how, heard, c.call.finish) == (REPLIED, [5], "stop")


@pytest.mark.parametrize(
    ("last", "how", "said"),
    [
        ([{**DONE, "n": 9}], REPLIED, "sent 3 tokens and counts 9"),
        ([{"error": "engine broke"}], REPLIED, "engine broke"),
        ([{"error": "decode stalled"}], "", "decode stalled"),
        ([], "", "ended its stream early"),
    ],
)
async def test_a_reply_that_goes_wrong_fails_and_only_a_certain_end_frees_the_node(
    last: list[dict[str, Any]], how: str, said: str
) -> None:
    async with called(MadeUpNode([*TOKENS, *last])) as c:
        run = asyncio.create_task(c.call.run())
        with pytest.raises(EngineFailed, match=said):
            await listen(c.call)
        assert (await run).how == how


async def test_a_busy_node_is_in_other_hands_and_nothing_ends_there() -> None:
    node = MadeUpNode(refusals=[(429, {"error": "busy", "current_rid": "x"})])
    async with called(node) as c:
        run = asyncio.create_task(c.call.run())
        with pytest.raises(NodeBusy, match="x of another router"):
            await listen(c.call)
        assert (await run).how == ""
        assert node.cancelled == []


async def test_after_a_timeout_a_confirmed_cancel_frees_the_node() -> None:
    timeout = (504, {"error": "kv_transfer_timeout", "rid": RID})
    node = MadeUpNode(refusals=[timeout, (499, {"error": "cancelled"})])
    async with called(node) as c:
        run = asyncio.create_task(c.call.run())
        with pytest.raises(EngineFailed, match="got no KV from prefill in time"):
            await listen(c.call)
        assert (await run).how == CANCELLED
        assert [body["rid"] for body in node.got] == [RID, RID]
        assert set(node.cancelled) == {RID}


async def test_without_a_confirmed_cancel_the_node_stays_in_doubt() -> None:
    failed = (500, {"error": "prepare failed", "rid": RID})
    busy = (429, {"error": "busy", "current_rid": RID})
    async with called(MadeUpNode(refusals=[failed, busy])) as c:
        run = asyncio.create_task(c.call.run())
        with pytest.raises(EngineFailed, match="answered 500: prepare failed"):
            await listen(c.call)
        ended = await run
        assert ended.how == ""
        assert "busy" in ended.why


async def test_a_cancel_waits_for_the_replys_end() -> None:
    node = MadeUpNode([*TOKENS, {**DONE, "finish_reason": "cancelled"}], hold=asyncio.Event())
    async with called(node) as c:
        run = asyncio.create_task(c.call.run())
        assert await anext(c.call.tokens()) == [5]
        c.call.cancel()
        assert (await run).how == CANCELLED
        assert set(node.cancelled) == {RID}


async def test_a_cancel_without_effect_leaves_the_node_in_doubt() -> None:
    class Deaf(MadeUpNode):
        async def _cancel(self, request: Request) -> Response:
            return JSONResponse({}, 404)

    node = Deaf([*TOKENS, DONE], hold=asyncio.Event())
    async with called(node, cancel_within_s=0.3) as c:
        run = asyncio.create_task(c.call.run())
        assert await anext(c.call.tokens()) == [5]
        c.call.cancel()
        assert (await run).how == ""


async def test_what_a_node_says_without_a_lease_reaches_nobody() -> None:
    async with called(MadeUpNode([*TOKENS, DONE]), sure=False) as c:
        run = asyncio.create_task(c.call.run())
        with pytest.raises(EngineFailed, match="lost its lease"):
            await anext(c.call.tokens())
        assert (await run).how == ""


def test_text_comes_when_its_bytes_are_there_and_special_tokens_stay_out() -> None:
    from tokenizers import Tokenizer, decoders, models

    letters = {"Ã": 0, "©": 1, "a": 2, "Ġb": 3}  # GPT-2's letters for the two bytes of é
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    text = Detokenizer(tokenizer, [2, 2], skip_special=True)
    assert [text.push([one]) for one in (2, 0, 1, 3, 4)] == ["a", "", "é", " b", ""]
    shown = Detokenizer(tokenizer, [2], skip_special=False)
    assert shown.push([2, 4]) == "a<end>"
