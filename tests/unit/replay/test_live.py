"""The parts of the live view that draw nothing: windows, the server's clock, frames, following."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from tests.unit.daemon.support import SPACE, offer, until
from tests.unit.replay.writer import PROMPT, Records, pull, write_conversation

from kvferry.core.digest import digest
from kvferry.core.events import Requested, RequestEnded
from kvferry.errors import LedgerReplaced
from kvferry.ledger.memory import MemoryLog
from kvferry.ports.log import FACTS_STREAM
from kvferry.replay.fold import fold_to
from kvferry.replay.live import follow
from kvferry.replay.live.clock import ServerClock
from kvferry.replay.live.follow import Live
from kvferry.replay.live.frame import frame
from kvferry.replay.live.recent import KEPT_S
from kvferry.replay.live.rows import Around, Frame, Window
from kvferry.replay.reading import message_at
from kvferry.replay.snapshots import write_snapshot

BEGAN_S = 1_780_000_000
Tick = Callable[[float], None]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Tick:
    """Sets when the ledger stores what is written from then on, in seconds after its beginning."""
    now = [BEGAN_S]
    monkeypatch.setattr("kvferry.ledger.memory.time.time_ns", lambda: round(now[0] * 1e9))

    def set_to(second: float) -> None:
        now[0] = round(BEGAN_S + second)

    return set_to


def shown(live: Live, second: float, **more: object) -> Frame:
    around = Around(now_ms=round((BEGAN_S + second) * 1_000), since_ms=live.since_ms)
    return frame(live.state, live.recent, msgspec.structs.replace(around, **more))


def windows(live: Live, second: float) -> dict[int, Window]:
    (space,) = (one for one in shown(live, second).spaces if one.space == SPACE)
    return {one.span_s: one for one in space.windows}


async def stored_ms(log: MemoryLog, seq: int) -> int:
    found = await message_at(log, FACTS_STREAM, seq)
    assert found is not None
    return found.stored_ms


async def watched(log: MemoryLog) -> Live:
    live = Live(log)
    await live.begin()
    return live


async def write_for_minutes(at: Tick, log: MemoryLog) -> None:
    """A pull in the first second, misses after 250 s and a request after 295 s."""
    records = Records(log)
    for node in ("p0", "d0"):
        await records.join(node)
    await records.write("d0", offer("d0.1", PROMPT))
    at(1)
    await records.write("p0", *pull("p0.1", "cmpl-a-0", "d0"))
    at(250)
    for n in range(2):
        await records.write("p0", Requested(request=f"m{n}", wanted=9, miss=f"diverged@{n}"))
    await records.write("p0", Requested(request="m2", wanted=9, miss="too_dear"))
    at(295)
    await records.write(
        "p0", RequestEnded(request="c", prompt_tokens=100, local_tokens=25, computed_tokens=75)
    )


async def test_windows_sum_up_what_lies_within_them(at: Tick) -> None:
    log = MemoryLog()
    await write_for_minutes(at, log)
    live = await watched(log)
    found = windows(live, 299)
    assert {span: one.requests for span, one in found.items()} == {10: 1, 60: 1, 300: 2}
    assert found[10].hit_share == 0.25
    assert found[300].hit_share == (1024 + 25) / 1160
    assert (found[300].transfers, found[300].bytes) == (1, 64 * 4096)
    assert found[300].bytes_per_s == 64 * 4096 / 300
    assert found[10].transfers == 0
    later = windows(live, 302)
    assert later[300].requests == 1, "the first second has left the window"
    assert later[300].transfers == 0
    nothing = windows(live, 700)
    assert {one.requests for one in nothing.values()} == {0}
    assert nothing[10].hit_share is None


async def test_misses_are_sorted_by_what_is_new(at: Tick) -> None:
    log = MemoryLog()
    await write_for_minutes(at, log)
    live = await watched(log)
    (space,) = shown(live, 299).spaces
    assert [(one.cause, one.lately, one.total) for one in space.misses] == [
        ("diverged", 2, 2),
        ("too_dear", 1, 1),
    ]
    (space,) = shown(live, 600).spaces
    assert {one.lately for one in space.misses} == {0}


async def test_counters_are_kept_for_the_longest_window_only(at: Tick) -> None:
    log = MemoryLog()
    records = Records(log)
    await records.join("p0")
    for second in range(0, 3 * KEPT_S, 2):
        at(second)
        await records.write("p0", RequestEnded(request=f"r{second}"))
    live = await watched(log)
    assert len(live.recent._seconds[SPACE]) <= KEPT_S / 2 + 1
    assert windows(live, 3 * KEPT_S - 2)[300].requests == KEPT_S / 2


async def test_a_frame_names_what_is_where_and_what_moves(at: Tick) -> None:
    log = MemoryLog()
    records = Records(log)
    for node in ("p0", "d0"):
        await records.join(node)
    lease = msgspec.structs.replace(offer("d0.2", PROMPT), tier="hbm", ttl_ms=9_000, why="retain")
    await records.write("d0", offer("d0.1", PROMPT), lease)
    opened, arrived, _ = pull("p0.1", "cmpl-a-0", "d0")
    await records.write("p0", opened)
    live = await watched(log)
    more = {"silent_s": {(SPACE, "p0"): 0.5}, "last_seq": 9, "folded_ms": BEGAN_S * 1_000}
    found = shown(live, 3, **more)
    assert (found.position, found.lag_messages, found.lag_ms) == (4, 5, 3_000)
    (space,) = found.spaces
    d0, p0 = space.nodes
    assert (d0.node, d0.silent_s, d0.sends, d0.receives) == ("d0", None, 1, 0)
    assert (p0.node, p0.silent_s, p0.sends, p0.receives) == ("p0", 0.5, 0, 1)
    assert (d0.cache.runs, d0.cache.blocks, d0.hbm.blocks) == (1, 64, 64)
    assert p0.cache.runs == 0
    assert [(one.transfer, one.blocks, one.age_ms) for one in space.moving] == [("p0.1", 64, 3_000)]
    assert [(one.link, one.open) for one in space.links] == [("d0>p0/tcp", 1)]
    await records.write("p0", arrived)
    (space,) = shown(await watched(log), 3).spaces
    assert space.moving == ()
    (link,) = space.links
    assert (link.open, link.transfers) == (0, 1)
    assert link.bytes_per_s == pytest.approx(64 * 4096 / 10)
    assert link.learned_bytes_per_s > 0


async def test_a_watch_from_a_snapshot_says_since_when_it_saw(at: Tick) -> None:
    log = MemoryLog()
    await write_for_minutes(at, log)
    whole = await watched(log)
    at(400)
    for to in (3, 5):
        state = await fold_to(log, to_seq=to)
        await write_snapshot(log, state, await stored_ms(log, to), keep_max=4, first=1)
    live = Live(log)
    found = await live._start((BEGAN_S + 200) * 1_000)
    assert found is not None
    assert found.state.position == 3, "the later one would leave a window without its beginning"
    await live.begin()
    assert digest(live.state) == digest(whole.state)
    assert live.state.position == whole.state.position


async def test_a_stream_without_its_beginning_shortens_the_windows(at: Tick) -> None:
    log = MemoryLog()
    await write_for_minutes(at, log)
    state = await fold_to(log, to_seq=7)
    stored = await stored_ms(log, 7)
    await write_snapshot(log, state, stored, keep_max=4, first=1)
    stream = log._streams[FACTS_STREAM]
    while stream.first < 8:
        stream.messages.popleft()
    live = await watched(log)
    assert live.since_ms == stored
    found = windows(live, 299)
    assert found[300].seen_s == pytest.approx(49)
    assert found[10].seen_s == 10
    assert found[300].requests == 1


async def test_what_is_written_while_it_watches_is_seen() -> None:
    log = MemoryLog()
    await write_conversation(log)
    live = await watched(log)
    following = asyncio.create_task(live.follow())
    before = digest(live.state)
    records = Records(log)
    await records.join("late")
    last = await records.write("late", *pull("late.1", "cmpl-late-0", "d0"))
    await until(lambda: live.state.position == last, "what was written")
    assert digest(live.state) != before
    assert digest(live.state) == digest(await fold_to(log))
    await log.close()
    async with asyncio.timeout(60):
        await following


async def test_a_replaced_ledger_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "AGAIN_S", 0.01)
    log, other = MemoryLog(), MemoryLog()
    await write_conversation(log)
    records = Records(other)
    await records.join("fresh")
    live = await watched(log)
    read = log.read
    broken: list[str] = []

    def once(stream: str, **how: object) -> object:
        """The first to follow finds another store behind the same address."""
        if how.get("follow") and not broken:
            broken.append(stream)
            log._streams = other._streams
            raise LedgerReplaced("another message")
        return read(stream, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "read", once)
    following = asyncio.create_task(live.follow())
    await until(lambda: live.state.position == 1 and not live.trouble, "the other ledger")
    assert list(live.state.spaces[SPACE].nodes) == ["fresh"]
    await log.close()
    async with asyncio.timeout(60):
        await following


def test_the_servers_clock_is_believed_once_it_speaks() -> None:
    clock = ServerClock(wall_ms=1_000_000, mono_ms=0)
    assert clock.now_ms(10) == 1_000_010
    clock.heard(500_000, 20, live=False)
    assert clock.now_ms(20) == 1_000_020, "an old message says nothing"
    clock.heard(1_005_000, 30, live=False)
    assert clock.now_ms(30) == 1_005_000, "but nothing is stored in the future"
    behind = ServerClock(wall_ms=1_000_000, mono_ms=0)
    behind.heard(940_000, 100, live=True)
    assert behind.now_ms(100) == 940_000, "our clock is a minute ahead"
    behind.heard(940_150, 200, live=True)
    assert behind.now_ms(200) == 940_150
    behind.heard(940_000, 300, live=True)
    assert behind.now_ms(300) == 940_250, "a late message takes nothing back"
