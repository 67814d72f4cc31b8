"""The story of one request, under whichever of its names it is asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.daemon.support import SPACE
from tests.unit.replay.writer import DECODE, PREFILL, TURN, Records, pull, write_conversation

import kvferry.core.events.transfers
from kvferry.cli.statusview import print_status
from kvferry.core.events import LinkProbed, NodeLeft, Requested, RequestEnded
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import facts_subject
from kvferry.replay.causes import cause, words
from kvferry.replay.explain import explain
from kvferry.replay.fold import fold_to
from kvferry.replay.status import summarize


async def test_a_router_id_tells_the_whole_turn_in_order() -> None:
    log = MemoryLog()
    await write_conversation(log)
    story = await explain(log, TURN)
    assert story.found
    assert {PREFILL, DECODE, TURN} <= set(story.requests)
    assert story.transfers == ("p0.7",)
    # Between the two streams only the store time orders, and that may be equal.
    assert ("p0", "produced") in [(item.node, item.event) for item in story.items]
    assert [(one.node, one.event) for one in story.items if one.lane != "blocks"] == [
        ("p0", "requested"),
        ("d0", "pin_ended"),
        ("p0", "transferred"),
        ("p0", "request_ended"),
        ("p0", "retained"),
        ("d0", "requested"),
        ("d0", "request_ended"),
        ("p0", "evicted"),
        ("r0", "turn_ended"),
    ]
    assert all(item.text for item in story.items)
    assert "1,024 pulled from d0 over tcp in 31 ms" in story.conclusion
    assert "36 computed" in story.conclusion
    assert cause("too_dear").meaning in story.conclusion
    assert story.cure == cause("too_dear").cure


@pytest.mark.parametrize("asked", [PREFILL, f"{TURN}-p", "p0.7"])
async def test_an_engine_id_a_client_id_and_a_transfer_find_the_pull(asked: str) -> None:
    log = MemoryLog()
    await write_conversation(log)
    story = await explain(log, asked)
    assert story.transfers == ("p0.7",)
    assert {"requested", "transferred", "pin_ended"} <= {item.event for item in story.items}
    # The turn joins both engines' ids; a transfer has only its own.
    assert (DECODE in story.requests) == (asked != "p0.7")


async def test_a_failed_transfer_and_a_miss_are_told_in_plain_words() -> None:
    log = MemoryLog()
    await write_conversation(log)
    failed = await explain(log, "cmpl-failing-0")
    assert "failed at settle: the source had reused a block" in failed.conclusion
    missed = await explain(log, "cmpl-missing-0")
    assert "from token 1536 on" in missed.conclusion
    assert "byte for byte" in missed.cure


async def test_an_unknown_id_suggests_near_ones_then_the_latest() -> None:
    log = MemoryLog()
    await write_conversation(log)
    near = await explain(log, "cmpl-failed-0")
    assert not near.found
    assert near.near[0] == "cmpl-failing-0"
    far = await explain(log, "zz")
    assert TURN in far.near
    assert (await explain(MemoryLog(), "zz")).near == ()


async def test_unreadable_messages_do_not_stop_a_story() -> None:
    log = MemoryLog()
    await log.append(facts_subject(SPACE, "p0"), b"\xc1", message_id="bad")
    await write_conversation(log)
    assert (await explain(log, TURN)).found


async def test_a_request_that_still_runs_has_its_choice_told() -> None:
    log = MemoryLog()
    records = Records(log)
    await records.join("p0")
    await records.write(
        "p0", Requested(request="cmpl-running-0", transfer="p0.1", source="d0", wanted=9, granted=4)
    )
    story = await explain(log, "cmpl-running-0")
    assert "pulls from d0" in story.conclusion


async def test_a_request_that_went_with_its_node_is_told_so() -> None:
    log = MemoryLog()
    records = Records(log)
    for node in ("p0", "d0"):
        await records.join(node)
    lives = {node: f"{node:0>16}" for node in ("p0", "d0")}
    asked = Requested(request="cmpl-lost-in-0", transfer="p0.1", source="d0", wanted=9, granted=4)
    ended = Requested(request="cmpl-ended-0", miss="nothing_held")
    await records.write("p0", ended, RequestEnded(request="cmpl-ended-0"), asked)
    other = NodeLeft(term=1, node="d0", incarnation=lives["d0"], epoch=1, why="silent")
    gone = NodeLeft(term=1, node="p0", incarnation=lives["p0"], epoch=1, why="silent for 5.2 s")
    await records.write("c-1", other, gone, lane="coord")
    story = await explain(log, "cmpl-lost-in-0")
    assert [item.event for item in story.items] == ["requested", "node_left"]
    assert "p0 was declared gone (silent for 5.2 s)" in story.conclusion
    assert story.cure
    before = await explain(log, "cmpl-ended-0")
    assert "node_left" not in [item.event for item in before.items]


async def test_the_backend_that_a_transfer_chose_is_told_by_explain_and_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = MemoryLog()
    records = Records(log)
    for node in ("p0", "d0"):
        await records.join(node)
    why = "fastest of 2 measured"
    chosen = LinkProbed(peer="d0", backend="tcp", gb_per_s=3.2, floor_ms=0.1, why=why)
    loser = LinkProbed(peer="d0", backend="nixl", gb_per_s=1.1, floor_ms=0.1)
    await records.write("p0", chosen, loser, cause="p0.7")
    await records.write("p0", *pull("p0.7", PREFILL, "d0"))
    await records.write("p0", *pull("p0.8", DECODE, "d0"))
    story = await explain(log, PREFILL)
    assert [one.body for one in story.items if one.event == "link_probed"] == [chosen, loser]
    assert "link_probed" not in [one.event for one in (await explain(log, DECODE)).items]
    document = summarize(await fold_to(log))
    assert document["spaces"][SPACE]["backends"] == [
        {"pair": "d0>p0", "backend": "tcp", "why": why}
    ]
    ledger = {"url": "u", "last_seq": 1, "coordinators": [], "source": "", "coordinator": None}
    print_status({**ledger, **document})
    shown = capsys.readouterr().out
    assert f"p0 reads from d0 over tcp: {why}" in shown
    assert re.search(r"d0>p0 +nixl +1\.09 ", shown)


def test_every_documented_miss_word_has_a_meaning_and_a_cure() -> None:
    text = Path(kvferry.core.events.transfers.__file__).read_text()
    documented = text.split("``miss`` says why:")[1].split('"""')[0]
    named = {word.partition("@")[0] for word in re.findall(r"``([a-z_@N]+)``", documented)}
    assert len(named) >= 18
    assert named <= words()
    for word in words():
        assert len(cause(word).meaning) > 20
        assert len(cause(word).cure) > 20
    assert "does not know" in cause("brand_new").meaning
