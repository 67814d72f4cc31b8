"""An agent against a ledger in memory: epochs, inventories, policies, names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import msgspec
import pytest
from tests.unit.node_agent.support import (
    SPACE,
    assert_contiguous,
    folded,
    identity,
    offer,
    settings,
    stored,
    turn,
    turns,
    until,
)

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    BLOCKS,
    COORD,
    FACTS,
    Event,
    Evicted,
    Gap,
    Inventory,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    Produced,
    Requested,
    Transferred,
)
from kvferry.core.messages import (
    HEARTBEATS,
    Control,
    Heartbeat,
    control_subject,
    encode,
)
from kvferry.core.state import OPEN
from kvferry.errors import ConfigError, LedgerRefused, LedgerUnavailable
from kvferry.ledger.codec import encode as encode_batch
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import coord_subject
from kvferry.node.agent.heartbeat import Gauges
from kvferry.node.agent.holdings import Truth
from kvferry.node.agent.life import AgentLife
from kvferry.node.agent.settings import NodeSettings
from kvferry.node.agent.status import AgentStatus
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.plans.client import PlanClient
from kvferry.ports.log import BLOCKS_STREAM, Reply


class TroubledLog(MemoryLog):
    """A ledger in memory that fails on demand, before or after it stored."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.fail_after = 0
        self.closed = 0
        self.refuse: LedgerRefused | None = None
        self.attempts: list[list[str]] = []

    async def append_many(self, batch: list[tuple[str, bytes, str]]) -> None:
        self.attempts.append([message_id for _, _, message_id in batch])
        if self.refuse is not None:
            raise self.refuse
        if self.away:
            raise LedgerUnavailable("away")
        await super().append_many(batch)
        if self.fail_after:
            self.fail_after -= 1
            raise LedgerUnavailable("stored, but nobody heard of it")

    async def close(self) -> None:
        """Only counted: the test reads on after the agent stopped."""
        self.closed += 1


class Alive:
    """The agent's life run on the test's own loop, so that a ledger in memory can serve it."""

    def __init__(
        self,
        outbox: Outbox,
        log: MemoryLog | None = None,
        *,
        truth: Truth | None = None,
        **changes: object,
    ) -> None:
        self.log = log or TroubledLog()
        self.outbox = outbox
        self.modes: list[str] = []
        self.gauges = Gauges()
        known = settings("nats://127.0.0.1:1", **changes)
        self.status = AgentStatus(known.node, self.modes.append)
        self.life = AgentLife(
            known,
            outbox,
            PlanClient(known),
            self.status,
            self.gauges,
            inventory=None,
            truth=truth,
            connect=self.connect,
        )

    async def connect(self, _: NodeSettings) -> MemoryLog:
        return self.log

    async def __aenter__(self) -> Alive:
        self.task = asyncio.create_task(self.life.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, timeout_s: float = 20.0) -> None:
        self.life.stop(asyncio.get_running_loop().time() + timeout_s)
        async with asyncio.timeout(30):
            await self.task

    async def control(self, verb: str, **fields: object) -> None:
        message = Control(verb=verb, **fields)  # type: ignore[arg-type]
        await self.log.publish(control_subject(SPACE, "p0"), encode(message))

    async def all_stored(self) -> None:
        await until(
            lambda: all(self.outbox.counts(lane).waiting == 0 for lane in (FACTS, BLOCKS)),
            "everything is stored",
        )


def events(batches: list[Batch]) -> list[Event]:
    return [entry.event for batch in batches for entry in batch.entries]


async def test_node_joined_goes_first_then_what_waited_then_node_closed() -> None:
    outbox = Outbox()
    outbox.facts(turn(0), "cause")
    async with Alive(outbox) as node:
        await asyncio.sleep(0.05)
        assert await stored(node.log) == []
        node.life.join(identity(address="127.0.0.1:9", blocks=12))
        await node.all_stored()
        assert node.status.state == "joined"
    batches = await stored(node.log)
    assert_contiguous(batches)
    found = events(batches)
    assert [type(event) for event in found] == [NodeJoined, type(turn(0)), NodeClosed]
    assert found[0].blocks == 12  # type: ignore[attr-defined]
    assert [e.cause for b in batches for e in b.entries][1] == "cause"


async def test_detail_goes_to_its_own_stream_under_the_same_record() -> None:
    outbox = Outbox()
    outbox.blocks(Produced(request="r", start=0, count=1, tail=bytes(32)))
    async with Alive(outbox) as node:
        node.life.join(identity())
        await node.all_stored()
    detail = await stored(node.log, BLOCKS_STREAM)
    assert [(b.lane, b.incarnation, b.epoch, b.seq) for b in detail] == [
        (BLOCKS, identity().incarnation, 1, 1)
    ]


async def test_many_events_share_messages_and_keep_their_order() -> None:
    outbox = Outbox()
    for number in range(2000):
        outbox.facts(turn(number))
    async with Alive(outbox) as node:
        node.life.join(identity())
        await node.all_stored()
    batches = await stored(node.log)
    assert_contiguous(batches)
    assert turns(batches) == [f"r{n}" for n in range(2000)]
    assert max(len(batch.entries) for batch in batches) == 256
    assert len(batches) < 20


async def test_failures_resend_the_same_messages_and_nothing_is_doubled() -> None:
    outbox, log = Outbox(), TroubledLog()
    log.away = True
    async with Alive(outbox, log) as node:
        node.life.join(identity())
        for number in range(300):
            outbox.facts(turn(number))
        await until(lambda: len(log.attempts) > 2, "the agent tries again")
        assert node.status.state == "alone"
        assert log.attempts[0] == log.attempts[1] == log.attempts[2]
        log.fail_after = 3
        log.away = False
        await node.all_stored()
        await until(lambda: node.status.state == "joined", "joined again")
    batches = await stored(log)
    assert_contiguous(batches)
    assert turns(batches) == [f"r{n}" for n in range(300)]


async def test_a_refusal_is_shown_and_does_not_end_the_agent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox, log = Outbox(), TroubledLog()
    log.refuse = LedgerRefused("the user p0 may not write kvf.x")
    async with Alive(outbox, log) as node:
        node.life.join(identity())
        await until(lambda: node.status.state == "alone", "alone")
        assert "may not write" in node.status.why
        log.refuse = None
        await until(lambda: node.status.state == "joined", "joined")
    warnings = [r for r in caplog.records if "serves without a ledger" in r.message]
    assert len(warnings) == 1


async def test_resync_begins_an_epoch_whose_inventory_is_what_the_node_holds() -> None:
    outbox = Outbox()
    # So long that a busy machine hands over five messages within it.
    async with Alive(outbox, resync_pause_s=2.0) as node:
        node.life.join(identity())
        outbox.facts(offer("kept", 4))
        outbox.facts(offer("gone", 2))
        outbox.facts(Evicted(offer="gone", rev=2, keep=0, reason="reuse"))
        outbox.facts(offer("short", 4))
        outbox.facts(Evicted(offer="short", rev=2, keep=1, reason="reuse"))
        outbox.facts(Requested(request="r1", transfer="t1", source="d0", granted=3))
        await node.all_stored()
        before = await folded(node.log)
        await asyncio.sleep(2.1)  # longer than resync_pause_s, which ignores repetitions
        for _ in range(5):
            await node.control("resync", incarnation=identity().incarnation)
        outbox.facts(turn(1))
        await node.all_stored()
        await until(lambda: "epoch 2" in node.status.why, "epoch 2")
        batches = await stored(node.log)
        after = await folded(node.log)
    assert_contiguous(batches)
    assert {batch.epoch for batch in batches} == {1, 2}
    second = events([b for b in batches if b.epoch == 2])
    assert [type(e) for e in second[:2]] == [NodeJoined, Inventory]
    held = {name: (o.rev, o.count, o.hashes) for name, o in before.space(SPACE).offers.items()}
    assert set(held) == {"kept", "short"}
    again = {name: (o.rev, o.count, o.hashes) for name, o in after.space(SPACE).offers.items()}
    assert again == held
    assert after.space(SPACE).transfers["t1"].phase == OPEN


async def test_a_message_for_another_process_life_is_not_for_us() -> None:
    outbox = Outbox()
    async with Alive(outbox, resync_pause_s=0.001) as node:
        node.life.join(identity())
        await until(lambda: node.status.state == "joined", "joined")
        await node.control("duplicate", incarnation="somebody-else")
        await node.control("resync", incarnation="somebody-else")
        await node.control("policy", mode="paused", version=1)
        await until(lambda: node.modes == ["paused"], "the policy came after them")
        assert node.status.state == "joined"
        outbox.facts(turn(1))
        await node.all_stored()
    assert {batch.epoch for batch in await stored(node.log)} == {1}


async def test_the_leader_giving_us_up_begins_an_epoch_however_young_the_last_one_is() -> None:
    outbox = Outbox()
    async with Alive(outbox, resync_pause_s=3600.0) as node:
        node.life.join(identity())
        await until(lambda: node.status.state == "joined", "joined")
        for incarnation in ("other", identity().incarnation):
            left = NodeLeft(term=1, node="p0", incarnation=incarnation, epoch=1, why="silent")
            batch = Batch(
                space=SPACE,
                node="c1",
                incarnation="c1",
                epoch=1,
                lane=COORD,
                seq=1,
                entries=(Entry(left),),
            )
            await node.log.publish(coord_subject(SPACE), encode_batch(batch))
        await node.log.publish(coord_subject(SPACE), b"\xc1 garbage")
        await until(lambda: "epoch 2" in node.status.why, "epoch 2")
    assert {batch.epoch for batch in await stored(node.log)} == {1, 2}


async def test_overflow_ends_the_epoch_with_a_gap_and_an_inventory() -> None:
    outbox = Outbox(facts_max=32)
    outbox.facts(offer("old", 2))
    for number in range(31):
        outbox.facts(turn(number))
    assert outbox.counts(FACTS).dropped == 0
    outbox.facts(Evicted(offer="old", rev=2, keep=0, reason="reuse"))
    outbox.facts(offer("new", 3))
    outbox.facts(turn(1000))
    assert outbox.counts(FACTS).dropped == 3
    async with Alive(outbox) as node:
        node.life.join(identity())
        await node.all_stored()
        outbox.facts(turn(2000))
        await node.all_stored()
        state = await folded(node.log)
    batches = await stored(node.log)
    assert_contiguous(batches)
    assert turns(batches) == [f"r{n}" for n in [*range(31), 2000]]
    second = events([b for b in batches if b.epoch == 2])
    assert [type(e) for e in second[:3]] == [NodeJoined, Gap, Inventory]
    assert second[1] == Gap(lane=FACTS, count=3)
    counts = outbox.counts(FACTS)
    assert counts.handed == counts.stored + 3
    # Dropped facts changed what the node holds, and the inventory says so.
    assert set(state.space(SPACE).offers) == {"new"}
    assert state.space(SPACE).totals.gaps == {FACTS: 3}


async def test_an_outcome_survives_an_overflow_around_its_transfer() -> None:
    outbox = Outbox(facts_max=20)
    assert outbox.reserve()
    outbox.facts(Requested(request="r1", transfer="t1", source="d0", granted=2))
    for number in range(40):
        outbox.facts(turn(number))
    outbox.settle(
        Transferred(
            transfer="t1",
            request="r1",
            source="d0",
            start=0,
            count=2,
            tokens=256,
            bytes=9,
            backend="tcp",
        )
    )
    async with Alive(outbox) as node:
        node.life.join(identity())
        await node.all_stored()
        state = await folded(node.log)
    assert state.space(SPACE).transfers["t1"].phase == "done"


async def test_detail_that_overflowed_is_declared_among_the_facts() -> None:
    outbox = Outbox(blocks_max=2)
    for number in range(5):
        outbox.blocks(Produced(request=f"r{number}", start=0, count=1, tail=bytes(32)))
    async with Alive(outbox) as node:
        node.life.join(identity())
        await node.all_stored()
        await until(lambda: outbox.take_blocks_gap() == 0, "the gap was taken")
    gaps = [e for e in events(await stored(node.log)) if isinstance(e, Gap)]
    assert gaps == [Gap(lane=BLOCKS, count=3)]
    detail = events(await stored(node.log, BLOCKS_STREAM))
    counts = outbox.counts(BLOCKS)
    assert (counts.handed, counts.stored, len(detail)) == (5, 2, 2)


async def test_an_event_that_cannot_be_written_is_a_gap_not_an_end() -> None:
    outbox = Outbox()
    outbox.facts(turn(1))
    outbox.facts(object())  # type: ignore[arg-type]
    outbox.facts(turn(2))
    async with Alive(outbox) as node:
        node.life.join(identity())
        await node.all_stored()
    batches = await stored(node.log)
    assert turns(batches) == ["r1", "r2"]
    gaps = [e for e in events(batches) if isinstance(e, Gap)]
    assert gaps == [Gap(lane=FACTS, count=1, why="malformed")]


async def test_a_large_batch_is_split_to_fit_messages() -> None:
    outbox = Outbox()
    for number in range(100):
        outbox.facts(offer(f"o{number}", 2000))
    async with Alive(outbox) as node:
        node.life.join(identity())
        await node.all_stored()
    batches = await stored(node.log)
    assert_contiguous(batches)
    assert all(len(encode_batch(batch)) <= 256 * 1024 for batch in batches)
    assert len(events(batches)) == 102


async def test_a_duplicate_name_stops_publishing_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = Outbox()
    async with Alive(outbox) as node:
        node.life.join(identity())
        await until(lambda: node.status.state == "joined", "joined")
        await node.control("duplicate", why="process bb joined later")
        await until(lambda: not outbox.admit(), "nothing is admitted any more")
        assert node.status.state == "duplicate"
        outbox.facts(turn(1))
        await asyncio.sleep(0.05)
    assert turns(await stored(node.log)) == []
    assert NodeClosed not in {type(e) for e in events(await stored(node.log))}
    errors = [r for r in caplog.records if r.levelname == "ERROR"]
    assert len(errors) == 1
    assert "name of its own" in errors[0].message
    counts = outbox.counts(FACTS)
    assert counts.handed == counts.dropped == 1


async def test_only_a_later_policy_counts(caplog: pytest.LogCaptureFixture) -> None:
    async with Alive(Outbox()) as node:
        node.life.join(identity())
        await until(lambda: node.status.state == "joined", "joined")
        for mode, version in [
            ("paused", 2),
            ("on", 1),
            ("paused", 2),
            ("sideways", 3),
            ("observe", 4),
        ]:
            await node.control("policy", mode=mode, version=version)
        await until(lambda: node.status.mode == "observe", "observe")
        assert node.modes == ["paused", "observe"]
        assert "sideways" in caplog.text


async def test_a_new_process_life_in_one_process_begins_a_record_of_its_own() -> None:
    outbox = Outbox()
    async with Alive(outbox) as node:
        node.life.join(identity("aa"))
        outbox.facts(offer("o1", 2))
        outbox.facts(turn(1))
        node.life.join(identity("bb"))
        outbox.facts(turn(2))
        await node.all_stored()
        state = await folded(node.log)
    batches = await stored(node.log)
    assert_contiguous(batches)
    assert [(b.incarnation, b.epoch) for b in batches if "r2" in turns([b])] == [("bb", 1)]
    assert [(b.incarnation, b.epoch) for b in batches if "r1" in turns([b])] == [("aa", 1)]
    assert state.space(SPACE).offers == {}


async def test_heartbeats_carry_the_record_and_gauges() -> None:
    beats: list[Heartbeat] = []

    async def heard(subject: str, data: bytes, reply: Reply | None) -> None:
        beats.append(msgspec.msgpack.decode(data, type=Heartbeat))

    node = Alive(Outbox())
    await node.log.subscribe(HEARTBEATS, heard)
    async with node:
        node.gauges.set("kv_blocks_free", 12)
        node.life.join(identity())
        await until(lambda: len(beats) > 2, "heartbeats")
    beat = beats[-1]
    assert (beat.node, beat.space, beat.epoch) == ("p0", SPACE, 1)
    assert beat.gauges["kv_blocks_free"] == 12.0
    assert beat.gauges["outbox_pressure"] == 0.0


async def test_a_part_that_fails_unexpectedly_is_run_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry.node.agent.session.RESTART_S", 0.01)
    outbox, log = Outbox(), TroubledLog()
    good = log.append_many
    failures = [RuntimeError("a defect"), RuntimeError("a defect")]

    async def bad(batch: list[tuple[str, bytes, str]]) -> None:
        if failures:
            raise failures.pop()
        await good(batch)

    log.append_many = bad  # type: ignore[method-assign]
    async with Alive(outbox, log) as node:
        node.life.join(identity())
        outbox.facts(turn(1))
        await node.all_stored()
    batches = await stored(log)
    assert_contiguous(batches)
    assert turns(batches) == ["r1"]
    assert "is run again" in caplog.text


@pytest.mark.parametrize("late", [True, False])
async def test_a_client_that_swallows_a_cancellation_cannot_hold_the_agent(late: bool) -> None:
    class Stubborn(Alive):
        cancelled = 0

        async def connect(self, _: NodeSettings) -> MemoryLog:
            try:
                await asyncio.sleep(300)
            except asyncio.CancelledError:
                self.cancelled += 1
            if late:
                return self.log
            raise LedgerUnavailable("swallowed")

    node = Stubborn(Outbox(), connect_timeout_s=600.0)
    async with node:
        await asyncio.sleep(0.05)
    assert node.cancelled == 1
    assert isinstance(node.log, TroubledLog)
    assert node.log.closed == (1 if late else 0)


async def test_the_connection_is_closed_in_the_end() -> None:
    async with Alive(Outbox()) as node:
        node.life.join(identity())
        await until(lambda: node.status.state == "joined", "joined")
    assert isinstance(node.log, TroubledLog)
    assert node.log.closed == 1


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: settings("", node=""), "node"),
        (lambda: settings("", node="a.b"), "a.b"),
        (lambda: settings("", heartbeat_s=0), "heartbeat_s"),
        (lambda: settings("", reconnect_min_s=9, reconnect_max_s=1), "reconnect_max_s"),
        (lambda: identity(""), "incarnation"),
        (lambda: identity(space="a b"), "space"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(
    make: Callable[[], object], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        make()


def test_secrets_do_not_show() -> None:
    shown = repr(settings("nats://u:hunter2@127.0.0.1:1", password="hunter3"))
    assert "hunter" not in shown


def test_no_thread_of_the_agent_is_needed_to_leave_events() -> None:
    outbox = Outbox()
    outbox.facts(turn(1))
    assert all(thread.name != "kvferry-agent" for thread in threading.enumerate())
    assert outbox.counts(FACTS).waiting == 1
