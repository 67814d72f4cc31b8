"""TileRT decode slots in a frame of `kvferry top`."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from kvferry.cli.changeview import plain
from kvferry.cli.grid import grid
from kvferry.cli.times import duration
from kvferry.core.slots import FREE, UNSURE
from kvferry.replay.live.rows import SlotRow

SLOTS_SHOWN_MAX = 8


def slot_table(slots: tuple[SlotRow, ...]) -> Table:
    """Each decode node: its slot's state and for how long, and who has it."""
    table = grid("TileRT node", "slot", ">since", ">fence", "who has it")
    for one in slots[:SLOTS_SHOWN_MAX]:
        drained = ", drained" if one.drained else ""
        table.add_row(
            plain(one.node),
            Text(f"{one.phase}{drained}", style="red" if one.phase == UNSURE else ""),
            duration(one.age_ms),
            str(one.fence or ""),
            plain(_holder(one)),
        )
    if len(slots) > SLOTS_SHOWN_MAX:
        table.add_row(f"and {len(slots) - SLOTS_SHOWN_MAX} more")
    return table


def _holder(one: SlotRow) -> str:
    if one.phase == FREE:
        return f"nobody; last {one.last}" if one.last else "nobody yet"
    whose = f"{one.holder}, {one.request}" if one.holder else "nobody"
    if one.phase == UNSURE:
        return f"awaited idle after {whose}" if one.holder else f"awaited idle ({one.why})"
    return whose
