"""The figures for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

PIPE_COLUMNS = 160
CONTENDERS = ("ours", "ours_every_block", "peer")


def show(figures: Mapping[str, Any]) -> None:
    """A table on stdout for each load."""
    out = Console(width=_width(), highlight=False)
    out.print(_table(figures, "conversations"))
    if "trace" in figures:
        out.print()
        out.print(_table(figures["trace"], "trace"))


def _table(figures: Mapping[str, Any], title: str) -> Table:
    load = figures["load"]
    grid = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        title_justify="left",
        title=f"{title}: {load['requests']:,} requests on {load['nodes']} nodes, "
        f"{load['stored_blocks']:,} blocks stored, {load['removed_blocks']:,} removed; "
        f"lookups of {load['question_blocks']:,.0f} blocks (mean)",
    )
    grid.add_column("index")
    for column in ("M blocks/s", "of peer", "lookup p50 us", "of peer", "p99 us", "bytes/block"):
        grid.add_column(column, justify="right")
    peer = figures.get("peer")
    for name in CONTENDERS:
        row = figures.get(name)
        if row is None:
            continue
        grid.add_row(
            f"{row['name']} {row['version']}" if name == "peer" else name,
            f"{row['apply_blocks_per_s'] / 1e6:.2f}",
            _ratio(row, peer, "apply_blocks_per_s"),
            f"{row['lookup_us_p50']:.1f}",
            _ratio(row, peer, "lookup_us_p50"),
            f"{row['lookup_us_p99']:.1f}",
            f"{row['bytes_per_block']:.1f}",
        )
    return grid


def _ratio(row: Mapping[str, Any], peer: Mapping[str, Any] | None, key: str) -> str:
    return f"{row[key] / peer[key]:.2f}" if peer else ""


def _width() -> int:
    if sys.stdout.isatty():
        return max(80, shutil.get_terminal_size().columns)
    return PIPE_COLUMNS
