"""What `kvferry top` shows of TileRT decode slots."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.cli.running import document, run
from tests.unit.cli.test_cli_topview import drawn
from tests.unit.slots.test_slot_views import NAMED, change, written

from kvferry.core.events import SlotChanged
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.exporting import export, whole
from kvferry.replay.live.follow import Live
from kvferry.replay.live.frame import frame
from kvferry.replay.live.rows import Around, Frame

AGE_MS = 90_000


def of(node: str, *events: SlotChanged) -> list[SlotChanged]:
    """What happened to another node of this name."""
    return [msgspec.structs.replace(one, node=node) for one in events]


async def shown(*events: Any) -> Frame:
    """A frame that long after the last event."""
    live = Live(await written(*events))
    await live.begin()
    return frame(live.state, live.recent, Around(now_ms=live.folded_ms + AGE_MS))


async def test_each_slot_is_shown_with_its_state_holder_and_age() -> None:
    seen = await shown(
        *of("t1", NAMED, change("granted", 1, "first"), change("replied", 1, "first")),
        *of("t2", NAMED, change("drained", 0)),
        change("granted", 2, "req-a"),
        change("confirmed", 2, "req-a"),
    )
    rows = {row.node: row for row in seen.slots}
    assert {name: (row.phase, row.drained, row.fence) for name, row in rows.items()} == {
        "t0": ("decoding", False, 2), "t1": ("free", False, 1), "t2": ("free", True, 0),
    }  # fmt: skip
    assert (rows["t0"].holder, rows["t0"].request) == ("r0.x", "req-a")
    assert (rows["t1"].holder, rows["t1"].last) == ("", "replied")
    assert [row.node for row in seen.slots] == ["t0", "t1", "t2"], "who is busy comes first"
    assert all(AGE_MS <= row.age_ms < AGE_MS + 60_000 for row in seen.slots)
    lines = {line.split()[0]: " ".join(line.split()) for line in drawn(seen).splitlines() if line}
    assert lines["t0"].startswith("t0 decoding 90.")
    assert lines["t0"].endswith(" s 2 r0.x, req-a")
    assert lines["t1"].endswith(" s 1 nobody; last replied")
    assert lines["t2"].startswith("t2 free, drained ")
    assert lines["t2"].endswith(" s nobody yet")


async def test_a_slot_of_which_nobody_knows_is_awaited_idle() -> None:
    seen = await shown(change("granted", 1, "req-a"), change("abandoned", 1, "req-a"))
    (row,) = seen.slots
    assert (row.phase, row.holder) == ("unsure", "r0.x")
    assert "unsure" in drawn(seen)
    assert "awaited idle after r0.x, req-a" in drawn(seen)


async def test_of_many_slots_the_busy_ones_are_shown() -> None:
    events = [one for number in range(1, 20) for one in of(f"t{number:02}", NAMED)]
    seen = await shown(*events, change("granted", 1, "req-a"))
    text = drawn(seen)
    assert len(seen.slots) == 20
    assert "r0.x, req-a" in text
    assert "and 12 more" in text


async def test_without_tilert_nothing_is_said_of_slots() -> None:
    live = Live(MemoryLog())
    await live.begin()
    seen = frame(live.state, live.recent, Around(now_ms=0))
    assert seen.slots == ()
    assert "TileRT" not in drawn(seen)


def test_an_exported_file_shows_them_too(tmp_path: Path) -> None:
    file = tmp_path / "slots.kvf"

    async def exported() -> None:
        log = await written(change("granted", 1, "req-a"))
        await export(log, file, await whole(log))

    asyncio.run(exported())
    (slot,) = document("top", "--file", str(file))["slots"]
    assert (slot["node"], slot["phase"], slot["request"]) == ("t0", "granted", "req-a")
    assert slot["age_ms"] == 0, "an exported file's present is its end"
    assert "r0.x, req-a" in run("top", "--file", str(file))
