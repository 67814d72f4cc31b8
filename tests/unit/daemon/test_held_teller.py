"""What nodes are told is held in their space."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.unit.daemon.support import (
    SPACE,
    STRIDE,
    FakeNode,
    chain,
    offer,
    running,
    settled,
    until,
)

from kvferry.core.events import Evicted
from kvferry.core.messages import held_subject
from kvferry.daemon import held
from kvferry.ledger.memory import MemoryLog
from kvferry.node.plans.held import HeldView

ONE, TWO = chain("one", 64), chain("two", 64)


@contextlib.asynccontextmanager
async def listening(log: MemoryLog) -> AsyncIterator[HeldView]:
    view = HeldView()
    stop = await log.subscribe(held_subject(SPACE), view.heard)
    try:
        yield view
    finally:
        await stop()


def sampled(hashes: list[bytes]) -> list[bytes]:
    return hashes[STRIDE - 1 :: STRIDE]


async def test_nodes_hear_what_is_offered_and_nothing_else_is_held() -> None:
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log), listening(log) as view:
        await d0.join()
        await until(lambda: view.lacks(ONE[STRIDE - 1]), "the empty whole")
        seq = await d0.facts(offer("d.1", ONE))
        await until(lambda: view.position >= seq, "the offer")
        assert not any(view.lacks(one) for one in sampled(ONE))
        assert all(view.lacks(one) for one in sampled(TWO))


async def test_who_joins_later_hears_the_whole() -> None:
    log = MemoryLog()
    d0, p0 = FakeNode(log, "d0"), FakeNode(log, "p0")
    async with running(log) as coordinator:
        await d0.join()
        await settled(coordinator, await d0.facts(offer("d.1", ONE)))
        async with listening(log) as view:
            await p0.join()
            await until(lambda: view.lacks(TWO[STRIDE - 1]), "the whole")
            assert not any(view.lacks(one) for one in sampled(ONE))


async def test_what_is_evicted_is_taken_out_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "REBUILD_S", 0.2)
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log), listening(log) as view:
        await d0.join()
        await d0.facts(offer("d.1", ONE), offer("d.2", TWO))
        gone = Evicted(offer="d.1", rev=2, keep=0, reason="reuse", count=64)
        await d0.facts(gone)
        await until(lambda: view.lacks(ONE[STRIDE - 1]), "the evicted offer is taken out")
        assert not any(view.lacks(one) for one in sampled(TWO))


async def test_an_index_that_was_built_anew_is_told_as_a_whole() -> None:
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log) as coordinator, listening(log) as view:
        await d0.join()
        await d0.facts(offer("d.1", ONE))
        await until(lambda: not view.lacks(ONE[STRIDE - 1]), "the first offer")
        projector = coordinator.projector
        follow = projector.index.follow

        def fail_once(*_: object) -> None:
            projector.index.follow = follow  # type: ignore[method-assign]
            raise RuntimeError("made to fail")

        projector.index.follow = fail_once  # type: ignore[method-assign]
        await d0.facts(offer("d.2", TWO))
        await until(lambda: not view.lacks(TWO[STRIDE - 1]), "what it held when it was built")
        await d0.facts(offer("d.3", chain("three", 64)))
        await until(lambda: not view.lacks(chain("three", 64)[STRIDE - 1]), "what came then")
        assert not any(view.lacks(one) for one in [*sampled(ONE), *sampled(TWO)])


async def test_a_full_set_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    talks = [chain(f"talk-{number}", 512) for number in range(40)]
    async with running(log), listening(log) as view:
        await d0.join()
        for number, talk in enumerate(talks):
            seq = await d0.facts(offer(f"d.{number}", talk))
        await until(lambda: view.position >= seq, "every offer")
        assert not any(view.lacks(one) for talk in talks for one in sampled(talk))
        strangers = [chain(f"other-{number}", STRIDE)[-1] for number in range(1000)]
        await until(lambda: sum(view.lacks(one) for one in strangers) > 950, "room for all")


async def test_a_space_that_holds_more_than_can_be_told_falls_silent_and_speaks_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(held, "SAMPLES_MAX", len(sampled(ONE)))
    log = MemoryLog()
    d0 = FakeNode(log, "d0")
    async with running(log, silent_after_s=60.0) as coordinator, listening(log) as view:
        await d0.join()
        await d0.facts(offer("d.1", ONE))
        await until(lambda: view.lacks(TWO[STRIDE - 1]), "as many as can be told")
        await settled(coordinator, await d0.facts(offer("d.2", TWO)))
        await until(lambda: not view.lacks(TWO[STRIDE - 1]), "it is not trusted any more")
        assert not view.lacks(chain("three", 64)[STRIDE - 1]), "everything is asked for"
        assert "more than its nodes can be told of" in caplog.text
        await d0.facts(Evicted(offer="d.1", rev=2, keep=0, reason="reuse", count=64))
        await until(lambda: view.lacks(ONE[STRIDE - 1]), "it speaks again")
        assert not any(view.lacks(one) for one in sampled(TWO))
