"""The ledger's view against a living node's own word, with the real agent on a ledger in memory.

The engine's word (what its pool would lend, which pins stand) is the test's own here; with real
engines it is asked in ``tests/e2e/test_both_ways.py`` and ``test_host_tier.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.unit.node_agent.support import SPACE, identity, offer, until
from tests.unit.node_agent.test_agent import Alive, TroubledLog

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    COORD,
    FACTS,
    AnyEvent,
    Evicted,
    LeaderElected,
    NodeJoined,
    NodeLeft,
    PinEnded,
    Requested,
    Retained,
    Transferred,
)
from kvferry.core.messages import HeldLease, HeldPin
from kvferry.errors import LedgerUnavailable
from kvferry.ledger.codec import encode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import coord_subject, facts_subject
from kvferry.node.agent import holdings
from kvferry.node.outbox.outbox import Outbox
from kvferry.replay.audit.live import run as live
from kvferry.replay.audit.live.run import LiveAudit, LiveReport

INCARNATION = identity().incarnation
LEASE = msgspec.structs.replace(offer("l1", 2), tier="hbm", ttl_ms=60_000)
ASKED = Requested(request="r1", transfer="t1", source="d0", wanted=4, granted=4, basis="plan")
ARRIVED = Transferred(
    transfer="t1", request="r1", source="d0", start=0, count=4, tokens=512, bytes=1, backend="tcp"
)


class Pool:
    """What an engine would say: all that is recorded, less what a test takes away."""

    def __init__(self) -> None:
        self.lends: dict[str, list[int]] = {}
        """By offer: one answer after the other, the last one for ever."""
        self.standing: list[HeldPin] = []
        self.leased: list[HeldLease] = []

    def held(self, event: Retained) -> int:
        answers = self.lends.get(event.offer, [-1])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def leases(self) -> Sequence[HeldLease]:
        return self.leased

    def pins(self) -> Sequence[HeldPin]:
        return self.standing


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ROUND_PAUSE_S", 0.05)
    monkeypatch.setattr(live, "CATCH_UP_S", 0.3)
    monkeypatch.setattr("kvferry.replay.audit.live.asking.ANSWER_S", 1.0)


@asynccontextmanager
async def node(
    *facts: AnyEvent, log: MemoryLog | None = None, pool: Pool | None = None
) -> AsyncIterator[Alive]:
    """A joined node that has recorded these facts."""
    outbox = Outbox()
    async with Alive(outbox, log, truth=pool or Pool()) as made:
        made.life.join(identity())
        for fact in facts:
            outbox.facts(fact)
        await made.all_stored()
        await until(lambda: made.status.state == "joined", "joined")
        yield made


async def asked(node: Alive) -> LiveReport:
    return await LiveAudit(node.log, node.log).run()


async def write(
    log: MemoryLog, *events: AnyEvent, seq: int, incarnation: str = INCARNATION, epoch: int = 1
) -> None:
    """What somebody writes in the name of p0."""
    batch = Batch(
        space=SPACE, node="p0", incarnation=incarnation, epoch=epoch, lane=FACTS, seq=seq,
        entries=tuple(Entry(event=event) for event in events),
    )  # fmt: skip
    await log.append(facts_subject(SPACE, "p0"), encode(batch), message_id=f"forged-{seq}")


def stories(report: LiveReport) -> list[tuple[str, str]]:
    assert all(one.invariant == "live" and one.stream == "KVF" for one in report.findings)
    return [(one.about, one.story) for one in report.findings]


async def test_a_node_that_holds_what_the_ledger_says() -> None:
    pool = Pool()
    pool.lends = {"o1": [4]}
    async with node(offer("o1", 4), LEASE, ASKED, pool=pool) as made:
        report = await asked(made)
    assert report.findings == ()
    assert (report.asked, report.agreed, report.offers, report.lent_blocks) == (1, ("p0",), 2, 4)


async def test_a_forged_offer_is_found() -> None:
    async with node(offer("o1", 4)) as made:
        await write(made.log, offer("fake", 3), seq=3)
        found = stories(await asked(made))
    assert [about for about, _ in found] == ["p0", "fake"]
    assert "somebody else wrote in its name" in found[0][1]
    assert "says that p0 holds fake (tier cache, 3 blocks, rev 1), but it does not" in found[1][1]


async def test_a_forged_eviction_is_found() -> None:
    async with node(offer("o1", 4), offer("o2", 4)) as made:
        await write(made.log, Evicted(offer="o1", rev=2, keep=0, reason="reuse"), seq=4)
        found = stories(await asked(made))
    assert [about for about, _ in found] == ["p0", "o1"]
    assert "p0 holds o1 (tier cache, 4 blocks, rev 1), of which the ledger knows" in found[1][1]


async def test_a_forgery_is_found_although_the_node_wrote_on() -> None:
    """Then both records are equally long, and only what they say differs."""
    async with node(offer("o1", 4)) as made:
        await write(made.log, Evicted(offer="o1", rev=2, keep=2, reason="reuse"), seq=3)
        made.outbox.facts(offer("o2", 1))
        await made.all_stored()
        found = stories(await asked(made))
    assert [about for about, _ in found] == ["o2", "o1"] or [a for a, _ in found] == ["o1", "o2"]
    assert any("the ledger says blocks 2, the node 4" in story for _, story in found)
    assert any("holds o2" in story and "knows nothing" in story for _, story in found)


async def test_a_lost_outcome_is_found() -> None:
    async with node(ASKED) as made:
        await write(made.log, ARRIVED, seq=3)
        found = stories(await asked(made))
    assert found[1] == ("t1", "transfer t1 is under way at p0, but not in the ledger")


async def test_a_pin_that_should_have_ended_is_found() -> None:
    pool = Pool()
    pool.standing = [HeldPin(transfer="t9", target="d0", blocks=4)]
    async with node(pool=pool) as made:
        assert (await asked(made)).findings == ()
        made.outbox.facts(PinEnded(transfer="t9", target="d0", granted=4, how="abort"))
        await made.all_stored()
        ((about, story),) = stories(await asked(made))
    assert about == "t9"
    assert "ended as abort at p0, but 4 blocks are still pinned there for d0" in story


async def test_another_process_of_the_name_is_found() -> None:
    async with node(offer("o1", 4)) as made:
        later = NodeJoined(incarnation="ff" * 8, epoch=1, address="x:1", block_size=128)
        await write(made.log, later, seq=1, incarnation="ff" * 8)
        ((about, story),) = stories(await asked(made))
    assert about == "p0"
    assert f"as process {INCARNATION}, but in the ledger it is process {'ff' * 8}" in story


async def test_a_process_that_was_told_to_stop_says_nothing() -> None:
    async with node(offer("o1", 4)) as made:
        await made.control("duplicate", why="test")
        await until(lambda: made.status.state == "duplicate", "it stops")
        report = await asked(made)
    assert (report.agreed, report.silent, report.findings) == ((), ("p0",), ())


async def test_a_silent_node_is_named_and_breaks_nothing() -> None:
    async with node(offer("o1", 4)) as made:
        log = made.log
        silent = NodeJoined(incarnation="dd" * 8, epoch=1, address="x:1", block_size=128)
        batch = Batch(
            space=SPACE, node="d0", incarnation="dd" * 8, epoch=1, lane=FACTS, seq=1,
            entries=(Entry(event=silent),),
        )  # fmt: skip
        await log.append(facts_subject(SPACE, "d0"), encode(batch), message_id="d0")
        report = await asked(made)
    assert (report.asked, report.agreed, report.silent) == (2, ("p0",), ("d0",))
    assert report.findings == ()


async def test_a_node_that_stood_still_for_a_moment_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node(offer("o1", 4)) as made:
        answers, asked_of = made.log.request, list[str]()

        async def late(subject: str, data: bytes, timeout_s: float) -> bytes:
            asked_of.append(subject)
            if len(asked_of) == 1:
                raise LedgerUnavailable(f"no answer on {subject} within {timeout_s:g} s")
            return await answers(subject, data, timeout_s)

        monkeypatch.setattr(made.log, "request", late)
        report = await asked(made)
    assert (report.agreed, report.silent, report.findings) == (("p0",), (), ())
    assert len(asked_of) >= 2


async def test_what_the_ledger_has_not_stored_is_not_held_against_it() -> None:
    log = TroubledLog()
    async with node(offer("o1", 4), log=log) as made:
        log.away = True
        made.outbox.facts(offer("o2", 4))
        await until(lambda: made.status.state == "alone", "it cannot store")
        report = await asked(made)
        assert (report.agreed, report.findings) == ((), ())
        (why,) = report.undecided
        assert "it has written 3 events of epoch 1, of which the ledger has stored 2" in why
        log.away = False
        await made.all_stored()
        assert (await asked(made)).agreed == ("p0",)


async def test_a_node_that_was_given_up_and_lives_is_undecided() -> None:
    async with node(offer("o1", 4)) as made:
        made.life._session._inbox._facts.resync = lambda why: False  # type: ignore[union-attr, method-assign]
        events = (
            LeaderElected(term=1, replica="c1"),
            NodeLeft(term=1, node="p0", incarnation=INCARNATION, epoch=1),
        )
        batch = Batch(
            space=SPACE, node="c1", incarnation="c1", epoch=1, lane=COORD, seq=1,
            entries=tuple(Entry(event=event) for event in events),
        )  # fmt: skip
        await made.log.append(coord_subject(SPACE), encode(batch), message_id="c1")
        report = await asked(made)
    assert (report.asked, report.agreed, report.findings) == (1, (), ())
    assert "believes nothing of it (left: silent)" in report.undecided[0]
    gone = await LiveAudit(made.log, MemoryLog()).run()
    assert (gone.asked, gone.silent) == (0, ()), "nobody expects it to answer"


async def test_a_busy_node_is_compared_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offers come and go while it answers, so that each page stands at a place of its own."""
    monkeypatch.setattr(holdings, "PAGE_ITEMS_MAX", 16)
    monkeypatch.setattr(live, "CATCH_UP_S", 10.0)
    many = [offer(f"o{number:03}", 2) for number in range(100)]
    async with node(*many) as made:

        async def change() -> None:
            for number in range(100_000):
                name = f"o{number % 100:03}"
                rev = 2 * (number // 100) + 2
                made.outbox.facts(Evicted(offer=name, rev=rev, keep=0, reason="reuse"))
                made.outbox.facts(msgspec.structs.replace(offer(name, 2), rev=rev + 1))
                await asyncio.sleep(0.001)

        changing = asyncio.create_task(change())
        try:
            reports = [await asked(made) for _ in range(5)]
        finally:
            changing.cancel()
    assert [report.findings for report in reports] == [()] * 5
    assert [report.agreed for report in reports] == [("p0",)] * 5
    assert min(report.offers for report in reports) >= 90


async def test_retained_by_the_same_rev_with_other_blocks_is_found() -> None:
    async with node(offer("o1", 4)) as made:
        await write(made.log, Retained(offer="o1", rev=2, tier="host", count=4, tail=b"t" * 32,
                                       hashes=b""), seq=3)  # fmt: skip
        found = stories(await asked(made))
    assert found[1] == ("o1", "o1 of p0: the ledger says tier host, the node cache")
