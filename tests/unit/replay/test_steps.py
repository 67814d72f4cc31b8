"""Forward and back through a ledger, and what each message changed, in plain words."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from tests.unit.daemon.support import SPACE, offer
from tests.unit.replay.writer import PROMPT, Records, pull, write_conversation

from kvferry.core.digest import digest
from kvferry.core.events import Evicted, RequestEnded
from kvferry.core.state import State
from kvferry.errors import ConfigError
from kvferry.ledger.memory import MemoryLog
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.fold import fold_to
from kvferry.replay.reading import message_at
from kvferry.replay.snapshots import write_snapshot
from kvferry.replay.steps import walk
from kvferry.replay.steps.follow import Turn, turns
from kvferry.replay.steps.part import changes, named, summary
from kvferry.replay.steps.walk import Place, Walk


async def check(log: MemoryLog, place: Place | None, seq: int) -> None:
    """The place is at ``seq``, and its two states are what a fresh fold comes to."""
    assert place is not None
    assert place.message is not None
    assert (place.message.seq, place.after.position) == (seq, seq)
    assert digest(place.after) == digest(await fold_to(log, to_seq=seq, from_snapshot=False))
    before = await fold_to(log, to_seq=seq - 1, from_snapshot=False)
    assert digest(place.before) == digest(before)


@pytest.mark.parametrize("behind", [1, 3, 256])
async def test_each_step_is_what_a_fresh_fold_comes_to(
    behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "BEHIND_MESSAGES", behind)
    monkeypatch.setattr(walk, "REACH_MESSAGES", 2 * behind)
    log = MemoryLog()
    last = await write_conversation(log)
    digests = {digest(await fold_to(log, to_seq=to)) for to in range(1, last + 1)}
    assert len(digests) > last / 2, "else equal digests would say little"
    steps = Walk(log)
    await check(log, await steps.begin(await fold_to(log)), last)
    assert await steps.forward() is None
    for seq in range(last - 1, 0, -1):
        await check(log, await steps.back(), seq)
    beginning = await steps.back()
    assert beginning is not None
    assert (beginning.message, beginning.after.position) == (None, 0)
    assert await steps.back() is None
    for seq in range(1, last + 1):
        await check(log, await steps.forward(), seq)
    assert await steps.forward() is None
    await check(log, await steps.back(), last - 1)
    assert len(steps._kept) <= walk.KEPT_STATES_MAX


async def test_what_comes_later_can_be_stepped_to() -> None:
    log = MemoryLog()
    last = await write_conversation(log)
    steps = Walk(log)
    await steps.begin(await fold_to(log))
    assert await steps.forward() is None
    await Records(log).join("late")
    await check(log, await steps.forward(), last + 1)


@pytest.mark.parametrize("snapshot", [True, False])
async def test_back_ends_where_the_ledger_begins(snapshot: bool) -> None:
    log = MemoryLog()
    last = await write_conversation(log)
    first = last - 2
    floor = await fold_to(log, to_seq=first - 1)
    if snapshot:
        message = await message_at(log, FACTS_STREAM, first - 1)
        assert message is not None
        await write_snapshot(log, floor, message.stored_ms, keep_max=2, first=1)
    stream = log._streams[FACTS_STREAM]
    while stream.first < first:
        stream.messages.popleft()
    steps = Walk(log)
    place: Place | None = await steps.begin(await fold_to(log))
    for seq in range(last - 1, first - 1, -1):
        place = await steps.back()
        assert place is not None
        assert place.after.position == seq
    place = await steps.back()
    assert place is not None
    assert (place.message, place.after.position) == (None, first - 1)
    assert (digest(place.after) == digest(floor)) is snapshot
    assert await steps.back() is None


async def states(log: MemoryLog, a: int, b: int) -> tuple[State, State]:
    return await fold_to(log, to_seq=a), await fold_to(log, to_seq=b)


async def small(log: MemoryLog) -> Records:
    """Two nodes; d0 offers (3), p0 pulls (4), and d0's engine reuses the memory (5)."""
    records = Records(log)
    for node in ("p0", "d0"):
        await records.join(node)
    await records.write("d0", offer("d0.1", PROMPT))
    await records.write("p0", *pull("p0.1", "cmpl-a-0", "d0"))
    await records.write("d0", Evicted(offer="d0.1", rev=2, keep=0, reason="reuse", count=64))
    return records


async def test_changes_are_told_in_plain_words_and_once() -> None:
    log = MemoryLog()
    await small(log)
    joined = changes(*await states(log, 1, 2))
    assert [(one.kind, one.id, one.change) for one in joined] == [("node", "d0", "added")]
    offered = changes(*await states(log, 2, 3))
    assert [one.text for one in offered] == ["offer d0.1: d0 offers 64 blocks from its cache"]
    pulled = changes(*await states(log, 3, 4))
    assert {one.kind for one in pulled} == {"transfer", "totals"}
    assert any(one.text == "pulled tokens from 0 to 1,024 (+1,024)" for one in pulled)
    assert not any(one.id.startswith("events.") for one in pulled)
    assert changes(*await states(log, 4, 4)) == ()


async def test_a_part_has_only_what_concerns_its_nodes() -> None:
    log = MemoryLog()
    await small(log)
    before, after = await states(log, 0, 4)
    p0, d0 = frozenset({"p0"}), frozenset({"d0"})
    assert {one.id for one in changes(before, after, p0)} == {"p0", "p0.1"}
    assert {one.id for one in changes(before, after, d0)} == {"d0", "d0.1", "p0.1"}
    gone = changes(*await states(log, 4, 5), d0)
    assert [(one.id, one.change) for one in gone] == [("d0.1", "removed")]
    assert changes(*await states(log, 4, 5), p0) == ()
    found = summary(after, d0)
    assert (found.nodes, found.offers, found.offered_blocks) == (1, 1, 64)
    assert summary(after, p0).offers == 0
    assert summary(after).requests == 1
    assert found.requests is None


async def test_a_node_that_is_not_there_names_near_ones() -> None:
    log = MemoryLog()
    await small(log)
    state = await fold_to(log)
    assert named(state, ["d0"]) == {"d0"}
    with pytest.raises(ConfigError, match="did you mean d0"):
        named(state, ["d00"])
    with pytest.raises(ConfigError, match="no node had joined"):
        named(State(), ["d0"])


async def test_what_is_written_is_told_as_it_changes_the_state() -> None:
    log = MemoryLog()
    records = await small(log)
    state = await fold_to(log)
    async with aclosing(turns(log, state, together_s=0.01)) as told:
        await records.write("d0", offer("d0.2", PROMPT))
        first = await anext(told)
        assert (first.state.position, [one.id for one in first.changes]) == (6, ["d0.2"])
        await records.write("p0", RequestEnded(request="x", prompt_tokens=5, computed_tokens=5))
        second: Turn = await anext(told)
        assert second.state.position == 7
        assert {one.id for one in second.changes} == {
            "requests", "prompt_tokens", "computed_tokens",
        }  # fmt: skip
        assert second.stored_ms >= first.stored_ms > 0


async def test_a_node_is_followed_without_the_others() -> None:
    log = MemoryLog()
    records = await small(log)
    state = await fold_to(log)
    assert SPACE in state.spaces
    async with aclosing(turns(log, state, frozenset({"d0"}), together_s=0.01)) as told:
        await records.write("p0", offer("p0.2", PROMPT))
        await records.write("d0", offer("d0.2", PROMPT))
        turn = await anext(told)
        assert [one.id for one in turn.changes] == ["d0.2"]
        await log.close()
        assert [one async for one in told] == []
