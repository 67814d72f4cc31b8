"""What a coordinator lives through: garbage, its own bugs, a new start, a replaced ledger."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.unit.daemon.support import (
    SPACE,
    FakeNode,
    ask,
    chain,
    offer,
    plan,
    plan_request,
    pulled,
    quick,
    running,
    settled,
    until,
)

from kvferry.core.digest import digest
from kvferry.core.events import Checkpoint, Evicted
from kvferry.daemon.coordinator import Coordinator
from kvferry.errors import LedgerUnavailable
from kvferry.ledger.codec import decode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import facts_subject
from kvferry.ports.log import FACTS_STREAM, StreamBounds
from kvferry.replay.fold import fold_to
from kvferry.replay.snapshots import read_catalogue

PROMPT = chain("talk", 64)


async def test_garbage_in_the_ledger_is_quarantined_and_shown() -> None:
    log = MemoryLog()
    p0, d0 = FakeNode(log, "p0"), FakeNode(log, "d0")
    await p0.join()
    await d0.join()
    bad = await log.append(facts_subject(SPACE, "p0"), b"\xc1garbage", message_id="x1")
    async with running(log) as coordinator:
        # A node that writes under another node's subject is refused as well.
        await d0.facts(offer("d.1", PROMPT))
        forged_seq = await log.append(
            facts_subject(SPACE, "d0"),
            (await _last(log, facts_subject(SPACE, "p0"), before=bad)).data,
            message_id="x2",
        )
        await settled(coordinator, forged_seq)
        status = await ask(log, coordinator, verb="status")
        assert status["quarantined"]["total"] == 2
        assert [one["seq"] for one in status["quarantined"]["last"]] == [bad, forged_seq]
        assert "under the subject" in status["quarantined"]["last"][1]["why"]
        assert (await plan(log, coordinator, plan_request("p0", PROMPT))).candidates


async def _last(log: MemoryLog, subject: str, before: int) -> Any:
    found = [one async for one in log.read(FACTS_STREAM, subject=subject) if one.seq < before]
    return found[-1]


async def test_status_says_what_has_to_happen_first() -> None:
    log = MemoryLog()
    async with running(log) as coordinator:
        empty = await ask(log, coordinator, verb="status")
        assert "start an engine" in empty["advice"][0]
        p0 = FakeNode(log, "p0")
        await p0.join(warnings=("prefix caching is off; start without --no-enable-prefix-caching",))
        await settled(coordinator, await p0.facts(*pulled("r1", "d0", tokens=512, total_ms=5.0)))
        status = await ask(log, coordinator, verb="status")
        space = status["spaces"][SPACE]
        assert space["reuse"]["pulled_tokens"] == 512
        assert space["reuse"]["pulled_share"] == pytest.approx(512 / 515)
        assert "prefix caching" in space["nodes"][0]["warnings"][0]
        assert any("only p0 is joined" in one for one in status["advice"])
        assert status["coordinator"]["lag_messages"] == 0
        assert (await ask(log, coordinator, verb="spaces"))["spaces"] == [SPACE]


async def test_a_bug_in_an_observer_or_task_is_logged_and_survived(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog()
    async with running(log) as coordinator:

        def broken(applied: object) -> None:
            raise RuntimeError("seeded")

        coordinator.projector.observe(broken)
        p0 = FakeNode(log, "p0")
        await p0.join()
        d0 = FakeNode(log, "d0")
        await d0.join()
        await settled(coordinator, await d0.facts(offer("d.1", PROMPT)))
        assert (await plan(log, coordinator, plan_request("p0", PROMPT))).candidates
        assert "seeded" in caplog.text
        real, calls = coordinator.projector.measure, 0

        async def fails_once() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise RuntimeError("seeded in a task")
            await real()

        coordinator.projector.measure = fails_once  # type: ignore[method-assign]
        await until(lambda: calls > 2, "the tick starts again")
        assert coordinator.tasks.failures == {"tick": 1}


async def test_a_restart_continues_from_its_checkpoint_with_the_same_state() -> None:
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log) as coordinator:
        await d0.join()
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        for number in range(10):
            last = await d0.facts(offer(f"d.{number}", PROMPT[: 8 + number]))
        await settled(coordinator, last)
    catalogue = await read_catalogue(log)
    assert len(catalogue.entries) == 1, "a clean stop leaves a checkpoint"
    events = [event async for event in _events(log)]
    assert isinstance(events[-1], Checkpoint)
    assert events[-1].position == catalogue.entries[0].position >= last
    last = await d0.facts(Evicted(offer="d.3", rev=2, keep=0, reason="reuse"))
    async with running(log) as again:
        await settled(again, last)
        answer = await ask(log, again, verb="digest", position=last)
        afresh = await fold_to(log, to_seq=answer["position"], from_snapshot=False)
        assert answer["digest"] == digest(afresh)
        assert "d.3" not in again.projector.state.spaces[SPACE].offers
        assert again.projector.index.space(SPACE).offers() == {
            "d0": frozenset(f"d.{n}" for n in range(10) if n != 3)
        }


async def _events(log: MemoryLog) -> Any:
    async for stored in log.read(FACTS_STREAM):
        for entry in decode(stored.data).entries:
            yield entry.event


async def test_periodic_checkpoints_are_thinned_and_idle_ones_skipped() -> None:
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log, checkpoints_max=3) as coordinator:
        await d0.join()
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        for number in range(8):
            await settled(coordinator, await d0.facts(offer(f"d.{number}", PROMPT[:8])))
            assert await coordinator.checkpoints.write() is not None
            assert await coordinator.checkpoints.write() is None, "nothing is new"
        entries = (await read_catalogue(log)).entries
        assert len(entries) == 3
        assert entries[0].position == coordinator.checkpoints.last.position  # type: ignore[union-attr]
        for entry in entries:
            assert await log.get(entry.object) is not None
        objects = [name for name in log._objects if name.startswith("snapshot-")]
        assert len(objects) == 3, "objects of dropped checkpoints are deleted"


async def test_a_replaced_ledger_is_noticed_and_folded_again() -> None:
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log) as coordinator:
        await d0.join()
        await settled(coordinator, await d0.facts(offer("d.1", PROMPT)))
        fresh = MemoryLog()
        log._streams = fresh._streams
        log._objects = fresh._objects
        p1 = FakeNode(log, "p1")
        await p1.join()

        def knows_only_p1() -> bool:
            space = coordinator.projector.state.spaces.get(SPACE)
            return space is not None and set(space.nodes) == {"p1"}

        await until(knows_only_p1, "the new ledger is folded from its beginning")
        assert coordinator.projector.index.space(SPACE).offers() == {}


async def test_what_is_folded_while_the_end_is_asked_for_does_not_make_the_ledger_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log, tick_s=5.0) as coordinator:
        await settled(coordinator, await d0.facts(offer("d.1", PROMPT)))
        projector, state = coordinator.projector, coordinator.projector.state
        real, late_s = log.bounds, 0.0

        async def overtaken(stream: str) -> StreamBounds:
            found = await real(stream)
            await settled(coordinator, await d0.facts(offer("d.1", PROMPT)))
            return found

        async def behind(stream: str) -> StreamBounds:
            # As a cluster's new stream leader may say for a moment.
            found = await real(stream)
            return StreamBounds(found.first, found.last - 1)

        monkeypatch.setattr(projector, "_clock", lambda: time.monotonic() + late_s)
        for bounds in (overtaken, overtaken, overtaken, behind, real):
            monkeypatch.setattr(log, "bounds", bounds)
            await projector.measure()
            late_s += 10.0
        await settled(coordinator, await d0.facts(offer("d.1", PROMPT)))
        assert projector.state is state
        monkeypatch.setattr(log, "bounds", behind)
        await projector.measure()
        late_s += 10.0
        await projector.measure()
        await until(lambda: projector.state is not state, "what stays short was replaced")


async def test_it_starts_before_the_ledger_answers_and_stops_within_its_bound() -> None:
    log = MemoryLog()
    real = log.bounds

    async def unavailable(stream: str) -> Any:
        raise LedgerUnavailable("not yet")

    log.bounds = unavailable  # type: ignore[method-assign]

    coordinator = Coordinator(log, log, log, quick())
    task = asyncio.create_task(coordinator.run())
    await until(lambda: len(log._listeners) == 3, "it listens")
    assert not coordinator.projector.loaded
    log.bounds = real  # type: ignore[method-assign]
    await until(lambda: coordinator.projector.loaded, "it loads once the ledger answers")
    await until(lambda: len(log._listeners) == 5, "it answers plans and lends slots too")
    before = asyncio.all_tasks()
    await coordinator.stop()
    await task
    left = {one for one in asyncio.all_tasks() if one in before and not one.done()}
    assert left == {asyncio.current_task()}
    assert log._listeners == []
