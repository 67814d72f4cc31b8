"""Each broken invariant is found and told; a sound ledger has none."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from tests.unit.cli.support import REQUEST, SPACE, Writer, converse

from kvferry.core.envelope import Batch, Entry
from kvferry.core.events import (
    AnyEvent,
    Evicted,
    Gap,
    LeaderElected,
    NodeLeft,
    PinEnded,
    PolicySet,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.ledger.codec import encode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.subjects import coord_subject
from kvferry.replay.audit.run import Audit, audit

Break = Callable[[MemoryLog, Writer, Writer], Coroutine[Any, Any, None]]

ASKED = Requested(
    request="r9", transfer="p.9", source="d0", source_incarnation=f"{'d0':0>16}", wanted=6,
    granted=4, basis="plan",
)  # fmt: skip
ARRIVED = Transferred(
    transfer="p.9", request="r9", source="d0", start=0, count=4, tokens=128, bytes=1, backend="tcp"
)
ENDED = RequestEnded(request="r9", prompt_tokens=200, pulled_tokens=128, computed_tokens=72)
LEASE = Retained(offer="d.9", rev=1, tier="hbm", count=4, tail=b"t" * 32, hashes=b"", ttl_ms=100)


async def checked(*breaks: Break, patience_ms: int = 0) -> Audit:
    log = MemoryLog()
    p, d = await converse(log)
    for one in breaks:
        await one(log, p, d)
    return await audit(log, patience_ms=patience_ms)


def by(*events: AnyEvent, at: str = "p") -> Break:
    async def write(log: MemoryLog, p: Writer, d: Writer) -> None:
        await (p if at == "p" else d).write(*events)

    return write


def pin(how: str, transfer: str = "p.9") -> Break:
    return by(PinEnded(transfer=transfer, target="p0", granted=4, how=how), at="d")


async def decide(log: MemoryLog, replica: str, term: int, event: AnyEvent, seq: int) -> None:
    batch = Batch(
        space=SPACE, node=replica, incarnation=replica, epoch=term, lane="coord", seq=seq,
        entries=(Entry(event=event),),
    )  # fmt: skip
    await log.append(coord_subject(SPACE), encode(batch), message_id=f"{replica}{term}{seq}")


async def test_a_sound_ledger_keeps_its_invariants() -> None:
    done = await checked(by(ASKED, ARRIVED, ENDED), pin("intact"))
    assert done.violations == ()
    assert done.notes == ()
    assert done.whole
    assert done.events > 10


CASES: list[tuple[str, list[Break], str, str]] = [
    ("void used", [by(ASKED, ARRIVED, ENDED), pin("void")], "source_decides", "wrong KV"),
    ("void first", [pin("void"), by(ASKED, ARRIVED, ENDED)], "source_decides", "wrong KV"),
    (
        "two outcomes",
        [by(ASKED, ARRIVED, ARRIVED, ENDED), pin("intact")],
        "ends_once",
        "second outcome",
    ),
    (
        "an outcome after both ends",
        [by(ASKED, ARRIVED, ENDED), pin("intact"), by(ARRIVED)],
        "ends_once",
        "second outcome",
    ),
    (
        "two pins",
        [by(ASKED, ARRIVED, ENDED), pin("intact"), pin("abort")],
        "ends_once",
        "pin of transfer",
    ),
    ("asked twice", [by(ASKED, ASKED, ARRIVED, ENDED), pin("intact")], "ends_once", "requested a"),
    ("no request", [by(ARRIVED, ENDED), pin("intact")], "conservation", "never requested"),
    (
        "more than granted",
        [by(ASKED, msgspec.structs.replace(ARRIVED, count=5), ENDED), pin("intact")],
        "conservation",
        "4 blocks of 6 wanted",
    ),
    (
        "from another source",
        [by(ASKED, msgspec.structs.replace(ARRIVED, source="p7"), ENDED), pin("intact")],
        "conservation",
        "d0 was asked",
    ),
    ("no outcome", [by(ASKED, ENDED), pin("abort")], "everything_ends", "no outcome"),
    ("no pin", [by(ASKED, ARRIVED, ENDED)], "conservation", "how the pin ended"),
    ("no end", [by(Requested(request="r9", miss="local"))], "everything_ends", "not ended"),
    ("two ends", [by(ENDED, ENDED)], "ends_once", "second time"),
    (
        "tokens",
        [by(msgspec.structs.replace(ENDED, computed_tokens=71))],
        "conservation",
        "are 199",
    ),
    (
        "a lease",
        [by(LEASE, at="d"), by(ENDED, at="d")],
        "everything_ends",
        "neither ended nor been renewed",
    ),
]


@pytest.mark.parametrize(
    ("breaks", "invariant", "story"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
async def test_what_is_broken_is_named_and_told(
    breaks: list[Break], invariant: str, story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _later(monkeypatch)
    done = await checked(*breaks)
    assert [(one.invariant, story in one.story) for one in done.violations] == [(invariant, True)]
    assert done.violations[0].seq > 0


def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message of the log is stored a second after the one before."""
    now = [1_780_000_000]

    def tick() -> int:
        now[0] += 1
        return now[0] * 1_000_000_000

    monkeypatch.setattr("kvferry.ledger.memory.time.time_ns", tick)


@pytest.mark.parametrize(
    "breaks",
    [
        [by(LEASE, Evicted(offer="d.9", rev=2, keep=0, reason="expired"), at="d")],
        [by(LEASE, msgspec.structs.replace(LEASE, rev=2, tier="cache", ttl_ms=0), at="d")],
        [by(ASKED, TransferFailed(
            transfer="p.9", request="r9", source="d0", stage="pin", reason="refused"),
            msgspec.structs.replace(ENDED, pulled_tokens=0, computed_tokens=200))],
        [by(LEASE, at="d"), by(ENDED)],
        [by(msgspec.structs.replace(ASKED, source="p0"), msgspec.structs.replace(
            ARRIVED, source="p0"), ENDED)],
    ],
    ids=["lease ended", "lease let go", "no pin was held", "an idle engine", "own host tier"],
)  # fmt: skip
async def test_what_only_looks_like_it_is_not_held_against_it(
    breaks: list[Break], monkeypatch: pytest.MonkeyPatch
) -> None:
    _later(monkeypatch)
    assert (await checked(*breaks)).violations == ()


async def test_what_is_still_under_way_is_given_time() -> None:
    assert (await checked(by(ASKED), patience_ms=60_000)).violations == ()


async def test_a_dead_nodes_loose_ends_are_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    _later(monkeypatch)
    assert (await checked(by(ASKED))).violations

    async def leave(log: MemoryLog, p: Writer, d: Writer) -> None:
        await decide(log, "c1", 1, LeaderElected(term=1, replica="c1"), 1)
        left = NodeLeft(term=1, node="p0", incarnation=p.incarnation, epoch=1)
        await decide(log, "c1", 1, left, 2)

    assert (await checked(by(ASKED), leave)).violations == ()


async def test_a_hole_in_a_lane_is_found_and_a_gap_is_noted() -> None:
    async def lose(log: MemoryLog, p: Writer, d: Writer) -> None:
        p._next["facts"] += 2
        await p.write(ENDED)

    done = await checked(lose, by(Gap(lane="blocks", count=7), at="d"))
    broken = [one for one in done.violations if one.invariant == "conservation"]
    assert len(broken) == 1
    assert "are missing" in broken[0].story
    assert [one.invariant for one in done.notes] == ["gap"]


async def test_late_and_repeated_messages_are_read_in_their_order() -> None:
    async def resend(log: MemoryLog, p: Writer, d: Writer) -> None:
        first = p._next["facts"]
        p._next["facts"] = first + 1
        await p.write(ARRIVED, ENDED)
        p._next["facts"] = first
        await p.write(ASKED)
        p._next["facts"] = first + 1
        again = Batch(
            space=SPACE, node="p0", incarnation=p.incarnation, epoch=1, lane="facts",
            seq=first + 1, entries=(Entry(event=ARRIVED), Entry(event=ENDED)),
        )  # fmt: skip
        await log.append(f"kvf.{SPACE}.p0.facts", encode(again), message_id="again")

    done = await checked(resend, pin("intact"))
    assert done.violations == ()
    assert [one.invariant for one in done.notes] == ["repeated", "repeated"]


async def test_a_term_has_one_leader_and_a_deposed_ones_word_is_void() -> None:
    async def lead(log: MemoryLog, p: Writer, d: Writer) -> None:
        await decide(log, "c1", 1, LeaderElected(term=1, replica="c1"), 1)
        await decide(log, "c2", 2, LeaderElected(term=2, replica="c2"), 1)
        await decide(log, "c1", 1, PolicySet(term=1, version=1, mode="paused"), 2)

    done = await checked(lead)
    assert done.violations == ()
    assert [one.invariant for one in done.notes] == ["deposed"]

    async def again(log: MemoryLog, p: Writer, d: Writer) -> None:
        await lead(log, p, d)
        await decide(log, "c3", 2, LeaderElected(term=2, replica="c3"), 1)

    assert [one.invariant for one in (await checked(again)).violations] == ["one_leader"]


async def test_what_cannot_be_read_is_a_violation() -> None:
    async def write(log: MemoryLog, p: Writer, d: Writer) -> None:
        await log.append(f"kvf.{SPACE}.p0.facts", b"garbage", message_id="g")

    done = await checked(write)
    assert [one.invariant for one in done.violations] == ["readable"]


async def test_a_range_is_not_blamed_for_what_began_before_it() -> None:
    log = MemoryLog()
    await converse(log)
    asked_at = await _position(log, REQUEST)
    done = await audit(log, first=asked_at + 1, patience_ms=0)
    assert done.violations == ()
    assert not done.whole
    assert done.first == asked_at + 1


async def _position(log: MemoryLog, request: str) -> int:
    async for stored in log.read("KVF"):
        if request.encode() in stored.data:
            return stored.seq
    raise AssertionError("not in the ledger")


async def test_a_hole_in_the_detail_is_found_too() -> None:
    async def lose(log: MemoryLog, p: Writer, d: Writer) -> None:
        p._next["blocks"] += 1
        await p.write(Produced(request="r", start=0, count=1, tail=b"t" * 32), lane="blocks")

    done = await checked(lose)
    assert [(one.invariant, one.stream) for one in done.violations] == [
        ("conservation", "KVF_BLOCKS")
    ]
