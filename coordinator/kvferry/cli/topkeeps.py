"""How nodes keep, in a frame of `kvferry top`."""

from __future__ import annotations

from rich.table import Table

from kvferry.cli import render
from kvferry.cli.changeview import plain
from kvferry.cli.grid import grid
from kvferry.cli.keepview import SET, names
from kvferry.replay.live.rows import NodeRow, SpaceFrame

KEEPS_SHOWN_MAX = 4
ALL = "each node"
NONE = "none"


def keeps_table(space: SpaceFrame) -> Table | None:
    """A row for all nodes that keep alike, what an operator has set marked; None without nodes."""
    alike: dict[tuple[str, ...], list[str]] = {}
    here = [n for n in space.nodes if n.status == "joined" and (n.blocks or n.host_blocks)]
    for one in here:
        alike.setdefault(_cells(one), []).append(one.node)
    if not here:
        return None
    table = grid(
        f"keeps ({SET.strip()} set)",
        ">lease lasts",
        ">leased at most",
        ">free at least",
        ">may ask for",
        ">host tier",
    )
    rows = sorted(alike.items(), key=lambda row: -len(row[1]))
    for cells, nodes in rows[:KEEPS_SHOWN_MAX]:
        table.add_row(plain(names(nodes) if len(rows) > 1 else ALL), *cells)
    if len(rows) > KEEPS_SHOWN_MAX:
        table.add_row(f"and {sum(len(nodes) for _, nodes in rows[KEEPS_SHOWN_MAX:])} more")
    return table


def _cells(node: NodeRow) -> tuple[str, ...]:
    now = node.keeps
    cells = {
        "lease_ms": f"{now['lease_ms'] / 1_000:g} s" if now["lease_ms"] else "no leases",
        "lease_budget": render.share(now["lease_blocks"], node.blocks) or NONE,
        "free_watermark": render.share(now["watermark_blocks"], node.blocks) or NONE,
        "retain_max_ms": f"{now['retain_max_ms'] / 1_000:g} s",
        "host_budget": render.share(now["host_blocks"], node.host_blocks) or NONE,
    }
    return tuple(text + SET * (name in now["set"]) for name, text in cells.items())
