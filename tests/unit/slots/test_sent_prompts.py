"""Prompts sent to TileRT nodes stand apart in status, top and advise, and change no share."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.unit.daemon.support import FakeNode

from kvferry.cli import statusview, topview
from kvferry.core.events import RequestEnded, SendBegan, SendEnded, TurnEnded
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.ledger import advise_ledger
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.sections import sections
from kvferry.replay.live.follow import Live
from kvferry.replay.live.frame import frame
from kvferry.replay.live.rows import Around, Window
from kvferry.replay.status import summarize_space

PROMPT, SENT_BYTES = 1_024, 3_538_944
PREFILL = RequestEnded(
    request="engine-a",
    external_id="a",
    session="s1",
    prompt_tokens=PROMPT,
    local_tokens=256,
    computed_tokens=768,
    output_tokens=1,
    ttft_ms=100.0,
    prefill_ms=90.0,
)
TURN = TurnEnded(request="a", session="s1", prefill_node="p0", decode_node="t0",
                 prefill_request="engine-a", ttft_ms=120.0)  # fmt: skip


def of_node(**kept: Any) -> RequestEnded:
    """The same prompt's end on the node that it was sent to."""
    return RequestEnded(request="a-t1", external_id="a", session="s1", prompt_tokens=PROMPT,
                        local_tokens=PROMPT, output_tokens=60, **kept)  # fmt: skip


async def ledger(ended: RequestEnded) -> MemoryLog:
    """One turn whose prompt p0 made and sent to t0, and a send that failed."""
    log = MemoryLog()
    await log.ensure_streams()
    prefill = FakeNode(log, "p0", "p" * 16, space="s")
    node = FakeNode(log, "t0", "t" * 16, space="s")
    await prefill.join()
    await node.join()
    for name, end in (
        ("i.s1", SendEnded(send="i.s1", request="engine-a", bytes=SENT_BYTES)),
        ("i.s2", SendEnded(send="i.s2", request="engine-a", bytes=7, reason="busy", stage="write")),
    ):
        await prefill.facts(SendBegan(send=name, request="engine-a", rid="a-t1"), end)
    await prefill.facts(PREFILL)
    await node.facts(ended)
    router = FakeNode(log, "r0", "r" * 16, space=ROUTER_SPACE)
    await router.join(block_size=0)
    await router.facts(TURN)
    return log


async def looked(log: MemoryLog) -> tuple[dict[str, Any], Window, Report]:
    """Status, the longest window of top, and advise."""
    live = Live(log)
    await live.begin()
    reuse = summarize_space(live.state.space("s"))["reuse"]
    now_ms = round(time.time() * 1_000)
    shown = frame(live.state, live.recent, Around(now_ms=now_ms, since_ms=now_ms - 1_000))
    (space,) = (one for one in shown.spaces if one.space == "s")
    return reuse, space.windows[-1], await advise_ledger(log, Costs(), "a log")


@pytest.mark.parametrize("kept", [{"kept_blocks": 16}, {"not_kept": "no_room"}])
async def test_a_sent_prompt_is_counted_as_sent_and_not_as_local(kept: dict[str, Any]) -> None:
    reuse, window, report = await looked(await ledger(of_node(**kept)))
    assert (reuse["requests"], reuse["prompt_tokens"], reuse["local_tokens"]) == (2, PROMPT, 256)
    assert (reuse["prompt_sent"], reuse["bytes_sent"]) == (PROMPT, SENT_BYTES)
    assert reuse["local_share"] == 0.25
    assert (window.prompt_tokens, window.prompt_sent, window.hit_share) == (PROMPT, PROMPT, 0.25)
    assert (report.prompt_tokens, report.reused_tokens, report.prompt_sent) == (PROMPT, 256, PROMPT)
    assert (report.hits, report.requests) == ({}, 1)


async def test_the_same_end_on_an_engine_is_a_hit_in_its_cache() -> None:
    reuse, window, report = await looked(await ledger(of_node()))
    assert (reuse["prompt_sent"], reuse["local_tokens"]) == (0, PROMPT + 256)
    assert (window.prompt_sent, window.prompt_tokens) == (0, 2 * PROMPT)
    assert report.prompt_sent == 0


async def test_a_turn_of_which_only_the_node_is_known_is_no_hit() -> None:
    log = MemoryLog()
    await log.ensure_streams()
    node = FakeNode(log, "t0", "t" * 16, space="s")
    await node.join()
    await node.facts(of_node(kept_blocks=16))
    report = await advise_ledger(log, Costs(), "a log")
    assert (report.requests, report.prompt_tokens, report.hits) == (0, 0, {})
    assert report.prompt_sent == PROMPT


async def test_the_views_say_so_where_anything_was_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for ended, said in ((of_node(kept_blocks=16), True), (of_node(), False)):
        reuse, window, report = await looked(await ledger(ended))
        statusview._print_reuse(reuse)
        shown = capsys.readouterr().out
        assert ("1,024 prompt tokens more were sent to TileRT nodes" in shown) == said
        assert "sends to TileRT nodes carried 3.4 MiB" in shown
        heads = [str(column.header) for column in topview._windows((window,)).columns]
        assert ("sent" in heads) == said
        text = "\n".join(line for section in sections(report) for line in section.lines)
        assert ("1,024 prompt tokens more were sent to TileRT nodes" in text) == said
