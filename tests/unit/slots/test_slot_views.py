"""What status, explain, diff and audit say of decode slots."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.daemon.support import FakeNode, ask, running
from tests.unit.slots.support import node, router

from kvferry.cli.slotview import print_slots
from kvferry.core.apply import apply_batch
from kvferry.core.envelope import Batch, Entry, Position
from kvferry.core.events import LeaderElected, SlotChanged, TurnEnded
from kvferry.core.state import State
from kvferry.ids import ROUTER_SPACE
from kvferry.ledger.codec import decode, encode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import coord_subject
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.audit.run import audit
from kvferry.replay.diff.states import compare
from kvferry.replay.explain import explain

NAMED = SlotChanged(term=1, node="t0", change="registered", http="http://h:1", control="h:2")


def change(word: str, fence: int, request: str = "a", term: int = 1, **more: Any) -> SlotChanged:
    return SlotChanged(
        term=term,
        node="t0",
        change=word,
        fence=fence,
        holder="r0.x",
        request=request,
        session="talk",
        **more,
    )


async def written(*events: Any) -> MemoryLog:
    """A ledger with these decisions, a message each."""
    log = MemoryLog()
    await write(log, LeaderElected(term=1, replica="c-1"), NAMED, *events)
    return log


async def write(log: MemoryLog, *events: Any, replica: str = "c-1", begin: int = 1) -> None:
    for seq, event in enumerate(events, begin):
        batch = Batch(
            space=ROUTER_SPACE,
            node=replica,
            incarnation="c" * 16,
            epoch=event.term,
            lane="coord",
            seq=seq,
            entries=(Entry(event=event),),
        )
        await log.append(coord_subject(ROUTER_SPACE), encode(batch), message_id=batch.message_id)


async def answered(log: MemoryLog, *requests: str) -> None:
    """The router ends the turns of these requests."""
    one = FakeNode(log, "r0", requests[0] * 16, space=ROUTER_SPACE)
    await one.join(block_size=0)
    for request in requests:
        await one.facts(TurnEnded(request=request, decode_node="t0"))


async def broken(log: MemoryLog) -> list[str]:
    found = await audit(log, patience_ms=0)
    return [one.invariant for one in found.violations if one.invariant != "state"]


GOOD = (change("granted", 1), change("confirmed", 1), change("replied", 1))


async def test_a_sound_record_has_no_violation() -> None:
    log = await written(*GOOD, change("granted", 2, "b"), change("abandoned", 2, "b"))
    await write(log, change("idle", 2, "b"), begin=20)
    await answered(log, "a", "b")
    found = await audit(log, patience_ms=0)
    assert found.violations == ()
    assert found.events == 11


@pytest.mark.parametrize(
    ("events", "invariant", "story"),
    [
        (
            (change("granted", 1), change("granted", 2, "b")),
            "slot_exclusive",
            "was lent for request b (fence 2) while request a (fence 1) had it",
        ),
        ((*GOOD, change("granted", 1, "b")), "slot_fence", "fence 1, but 1 was given before"),
        (
            (change("granted", 2), change("replied", 1)),
            "slot_fence",
            "names fence 1, but its lease has fence 2",
        ),
        ((*GOOD, change("cancelled", 1)), "slot_fence", "but nobody has it"),
    ],
)
async def test_what_must_not_be_is_found(events: Any, invariant: str, story: str) -> None:
    found = await audit(await written(*events), patience_ms=0)
    assert [one.invariant for one in found.violations] == [invariant]
    assert story in found.violations[0].story


async def test_a_deposed_leaders_lease_is_no_second_one() -> None:
    log = await written(change("granted", 1))
    await write(log, LeaderElected(term=2, replica="c-2"), replica="c-2")
    await write(log, change("granted", 2, "b"), begin=20)
    assert await broken(log) == [], "its term was over"
    await write(log, change("granted", 2, "b", term=2), replica="c-2", begin=20)
    assert await broken(log) == ["slot_exclusive"]


async def test_a_lease_that_outlives_its_request_is_found() -> None:
    log = await written(change("granted", 1))
    await answered(log, "z")
    assert await broken(log) == []
    await answered(log, "a")
    assert await broken(log) == ["everything_ends"]
    await write(log, change("abandoned", 1), begin=20)
    assert await broken(log) == [], "the node must first be seen idle"


async def test_a_range_may_begin_within_a_lease() -> None:
    log = await written(*GOOD, change("granted", 2, "b"))
    found = await audit(log, first=4, patience_ms=0)
    assert found.violations == ()


async def test_explain_tells_the_slots_part() -> None:
    log = await written(
        change("granted", 1, "a", waited_ms=1_240.0),
        change("confirmed", 1),
        change("abandoned", 1, why="decode answered 504"),
        change("granted", 2, "b"),
        change("idle", 1, why="nothing was heard for 121.0 s"),
    )
    story = await explain(log, "a")
    assert [one.event for one in story.items] == ["slot_changed"] * 4
    told = story.conclusion
    assert "it was lent decode node t0 after 1.2 s of waiting (fence 1), decoding began" in told
    assert "its router lost sight of it" in told
    assert "the node was seen idle (nothing was heard for 121.0 s)" in told
    assert "has not ended" not in told
    assert [(one.what, one.ms) for one in story.parts] == [("waiting for a decode slot", 1_240.0)]
    assert "and that lease has not ended" in (await explain(log, "b")).conclusion
    assert (await explain(log, "talk")).kind == "session"
    assert not (await explain(log, "c")).found


async def test_status_shows_who_has_a_slot(capsys: pytest.CaptureFixture[str]) -> None:
    log = MemoryLog()
    async with running(log) as coordinator, router(log) as slots:
        none = await ask(log, coordinator, verb="status")
        print_slots(none["routers"], none["coordinator"])
        assert capsys.readouterr().out == ""
        await slots.register([node("t0"), node("t1"), node("t2")])
        await slots.confirm(await slots.acquire(["t0"], "a"))
        await slots.abandon(await slots.acquire(["t1"], "b"), "decode answered 504")
        await slots.end(await slots.acquire(["t2"], "c"), "cancelled")
        await ask(log, coordinator, verb="drain", node="t2")
        coordinator.slot_timers.said["t1"] = "busy"
        document = await ask(log, coordinator, verb="status")
        print_slots(document["routers"], document["coordinator"])
        told = " ".join(capsys.readouterr().out.split())
    assert "decoding request a of router r0.a, since" in told
    assert "after request b of router r0.a (decode answered 504)" in told
    assert "nothing heard, node says busy" in told
    assert "free, drained nobody; the last lease: cancelled" in told
    assert "3 leases: 1 cancelled" in told


async def test_diff_names_a_slot_that_changed_hands() -> None:
    log = await written(*GOOD)
    whole, part = State(), State()
    async for stored in log.read(FACTS_STREAM):
        for state, last in ((whole, 99), (part, 4)):
            if stored.seq <= last:
                apply_batch(state, decode(stored.data), Position(stored.seq, stored.stored_ms))
    changed = [one for one in compare(part, whole).changes if one.kind == "slot"]
    assert [(one.id, one.change) for one in changed] == [("t0", "changed")]
    assert changed[0].fields["phase"] == ("decoding", "free")
    assert not [one for one in compare(whole, whole).changes if one.kind == "slot"]
