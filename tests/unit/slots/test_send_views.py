"""What explain and audit say of sends to decode nodes, and of the leases they are made under."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.daemon.support import FakeNode
from tests.unit.replay.test_perfetto import drawn
from tests.unit.slots.test_slot_views import change, write, written

from kvferry.core.events import RequestEnded, SendBegan, SendEnded, TurnEnded
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.audit.run import audit
from kvferry.replay.explain import explain

BEGAN = SendBegan(
    send="i.s1",
    request="engine-a",
    rid="a-t1",
    target="h:2",
    tokens=1_024,
    slot="t0",
    fence=1,
    external_id="a",
)
SENT = SendEnded(
    send="i.s1",
    request="engine-a",
    bytes=3_538_944,
    generation=4,
    waited_ms=12.0,
    admitted_ms=2.5,
    total_ms=31.2,
)
BUSY = SendEnded(send="i.s1", request="engine-a", stage="admission", reason="busy", detail="x")


async def sent(*events: Any) -> tuple[MemoryLog, FakeNode]:
    """A ledger with a lease of t0 for request a, and what its prefill recorded."""
    log = await written(change("granted", 1))
    prefill = FakeNode(log, "p0", "p" * 16, space="s")
    await prefill.join()
    await prefill.facts(*events)
    return log, prefill


async def test_explain_tells_how_the_kv_came_to_its_slot() -> None:
    log, prefill = await sent(BEGAN, SENT)
    await write(log, change("confirmed", 1), change("replied", 1), begin=20)
    await prefill.facts(
        RequestEnded(request="engine-a", external_id="a", prompt_tokens=8, computed_tokens=8)
    )
    router = FakeNode(log, "r0", "r" * 16, space=ROUTER_SPACE)
    await router.join(block_size=0)
    await router.facts(TurnEnded(request="a", prefill_node="p0", decode_node="t0"))
    for asked in ("a", "engine-a"):
        story = await explain(log, asked)
        told = [one.event for one in story.items]
        for event in ("slot_changed", "send_began", "send_ended", "request_ended", "turn_ended"):
            assert event in told, (asked, event)
        assert told.index("send_began") < told.index("send_ended")
        assert "its KV (1,024 tokens, 3.5 MB) went from p0 to t0 in 31 ms" in story.conclusion
    what = {one.what: one.ms for one in story.parts}
    assert what["the send in all"] == 31.2
    assert what["until the decode node admitted it"] == 2.5


async def test_explain_tells_why_a_node_can_keep_nothing_of_it() -> None:
    told = {name: getattr(SENT, name) for name in SENT.__struct_fields__}
    log, _ = await sent(BEGAN, SendEnded(**{**told, "no_origin": "the engine is in no space yet"}))
    assert (
        "went from p0 to t0 in 31 ms, which keeps nothing of it because the engine is in no space "
        "yet" in (await explain(log, "a")).conclusion
    )


async def test_explain_tells_why_kv_did_not_come_and_what_nobody_recorded() -> None:
    log, _ = await sent(BEGAN, BUSY)
    assert (
        "its KV did not go from p0 to t0: busy at admission (x)"
        in (await explain(log, "a")).conclusion
    )
    log, _ = await sent(BEGAN)
    assert (
        "was to go from p0 to t0, and how that ended is not recorded"
        in (await explain(log, "a")).conclusion
    )


async def test_a_sound_send_breaks_nothing() -> None:
    for outcome in (SENT, BUSY):
        log, _ = await sent(BEGAN, outcome)
        assert (await audit(log, patience_ms=0)).violations == ()
    # A client of TileRT's own router leases nothing.
    foreign = SendBegan(send="i.s1", request="engine-a", rid="a", target="h:2", tokens=8)
    log, _ = await sent(foreign, SENT)
    assert (await audit(log, patience_ms=0)).violations == ()


def other(**changed: Any) -> SendBegan:
    return SendBegan(
        **{**{name: getattr(BEGAN, name) for name in BEGAN.__struct_fields__}, **changed}
    )


@pytest.mark.parametrize(
    ("events", "invariant", "story"),
    [
        ((BEGAN,), "everything_ends", "send i.s1 of p0 has no outcome"),
        ((BEGAN, SENT, BUSY), "ends_once", "has a second outcome"),
        ((BEGAN, SENT, BEGAN), "ends_once", "began a second time"),
        ((SENT,), "conservation", "never began"),
        ((BEGAN, SendEnded(send="i.s1", request="engine-a")), "conservation", "0 bytes"),
        ((other(fence=9), SENT), "slot_exclusive", "no lease of fence 9 was granted"),
        ((other(external_id="b"), SENT), "slot_exclusive", "is the lease of request a on t0"),
        ((other(slot="t1"), SENT), "slot_exclusive", "is the lease of request a on t0"),
    ],
)
async def test_what_must_not_be_is_found(events: Any, invariant: str, story: str) -> None:
    log, _ = await sent(*events)
    found = await audit(log, patience_ms=0)
    assert [one.invariant for one in found.violations] == [invariant]
    assert story in found.violations[0].story


async def test_a_send_of_a_process_that_is_gone_is_not_held_against_it() -> None:
    log, _ = await sent(BEGAN)
    await FakeNode(log, "p0", "q" * 16, space="s").join()
    assert (await audit(log, patience_ms=0)).violations == ()


NODE_ENDED = RequestEnded(
    request="a-t1",
    external_id="a",
    session="s1",
    prompt_tokens=1_024,
    local_tokens=1_024,
    output_tokens=60,
    kept_blocks=16,
)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "and kept 16 blocks of prompt and answer for the next turn"),
        (
            {"kept_blocks": 0, "not_kept": "no_room"},
            "and kept nothing for the next turn because the host tier has no room for the chain",
        ),
    ],
)
async def test_what_a_node_generates_is_no_hit_in_its_own_cache(
    changed: dict[str, Any], told: str
) -> None:
    fields = {name: getattr(NODE_ENDED, name) for name in NODE_ENDED.__struct_fields__}
    log, _ = await sent(BEGAN, SENT)
    node = FakeNode(log, "t0", "t" * 16, space="s")
    await node.join()
    await node.facts(RequestEnded(**{**fields, **changed}))
    story = await explain(log, "a")
    text = f"t0 generated 60 tokens from a prompt of 1,024 tokens whose KV was sent to it, {told}"
    assert text in story.conclusion
    assert "own cache" not in story.conclusion
    assert "local" not in " ".join(one.text for one in story.items)
    of_session = await explain(log, "s1")
    assert "1,024 prompt tokens sent to TileRT nodes" in of_session.conclusion
    assert "0 local" in of_session.conclusion


async def test_a_send_is_found_by_its_id_with_the_request_that_it_is_of() -> None:
    log, _ = await sent(BEGAN, SENT)
    story = await explain(log, "i.s1")
    assert story.found
    assert "engine-a" in story.requests
    assert {"slot_changed", "send_began", "send_ended"} <= {one.event for one in story.items}
    assert "went from p0 to t0" in story.conclusion
    assert not (await explain(log, "i.s2")).found


async def test_sends_are_drawn_from_their_order_to_their_end(tmp_path: Path) -> None:
    refused = {name: getattr(BUSY, name) for name in BUSY.__struct_fields__} | {"send": "i.s2"}
    log, _ = await sent(BEGAN, SENT, other(send="i.s2"), SendEnded(**refused))
    trace = await drawn(log, tmp_path / "trace")
    (one,) = [
        found
        for found in trace.slices
        if found["where"][-2:] == ("p0", "sends") and found["name"] != "admission"
    ]
    assert one["name"] == "1024 tokens to t0"
    assert (one["end"] - one["begin"]) / 1e6 == pytest.approx(31.2, abs=0.01)
    assert one["notes"]["bytes"] == 3_538_944
    (stage,) = [found for found in trace.slices if found["name"] == "admission"]
    assert (stage["end"] - stage["begin"]) / 1e6 == pytest.approx(2.5, abs=0.01)
    faults = [found["name"] for found in trace.instants if found["where"][-1] == "faults"]
    assert faults == ["admission: busy"]
