"""Turns in the ledger, with a real nats-server; and a router whose ledger is gone."""

from __future__ import annotations

import logging
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.unit.router.support import house

from kvferry.core.envelope import Batch
from kvferry.core.events import NodeClosed, NodeJoined, TurnEnded
from kvferry.ledger.codec import decode
from kvferry.ledger.embedded import EmbeddedServer
from kvferry.ledger.jetstream import connect
from kvferry.ports.log import FACTS_STREAM


async def test_every_turn_is_recorded_once_with_both_ids(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "store") as server:
        log = await connect(server.url, name="test")
        try:
            await log.ensure_streams()
            async with house(nats_url=server.url, node="r0") as h:
                h["p0"].report = {"pulled": 20, "from": "d0", "ms": 3.0, "prompt_tokens": 24}
                whole = await h.ask(headers={"x-kvferry-session": "s"})
                stream = await h.ask(stream=True)
                h["d0"].status = 422
                refused = await h.ask()
            found: list[Batch] = []
            async with aclosing(log.read(FACTS_STREAM)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    found.append(decode(message.data))
        finally:
            await log.close()
    events = [entry.event for batch in found for entry in batch.entries]
    assert {(batch.space, batch.node) for batch in found} == {("router", "r0")}
    assert isinstance(events[0], NodeJoined)
    assert events[0].block_size == 0
    assert isinstance(events[-1], NodeClosed)
    turns = [event for event in events if isinstance(event, TurnEnded)]
    ids = [answer.headers["x-kvferry-request"] for answer in (whole, stream, refused)]
    assert [turn.request for turn in turns] == ids
    assert [turn.outcome for turn in turns] == ["ok", "ok", "refused"]
    first = turns[0]
    assert (first.prefill_node, first.prefill_request) == ("p0", "p0-r1")
    assert (first.decode_node, first.decode_request) == ("d0", "d0-r1")
    assert (first.session, first.prompt_tokens, first.output_tokens) == ("s", 7, 3)
    assert first.reuse == whole.headers["x-kvferry"] == "pulled=20 from=d0 3ms"
    assert 0 < first.ttft_ms <= first.total_ms


async def test_turns_go_on_without_a_ledger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kvferry.router"):
        async with house(nats_url="nats://127.0.0.1:1") as h:
            answer = await h.ask()
    assert answer.status_code == 200
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("turn kvf-")]
    assert len(lines) == 1
    assert answer.headers["x-kvferry-request"] in lines[0]
    assert "p0->d0" in lines[0]
    assert answer.headers["x-kvferry"] in lines[0]
