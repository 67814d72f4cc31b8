"""Tables and figures for people."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_COLUMNS = 200
"""Width where stdout is no terminal: wide enough that nothing is folded in a log or a grep."""


def console() -> Console:
    """Where tables go: stdout as it is at the moment of the call."""
    if sys.stdout.isatty():
        return Console(width=max(80, shutil.get_terminal_size().columns), highlight=False)
    return Console(width=PIPE_COLUMNS, highlight=False)


def heading(text: str) -> None:
    console().print(f"\n[bold]{escape(text)}[/bold]")


def line(text: str) -> None:
    """Plain text, folded nowhere."""
    console().print(escape(text), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns whose title begins with ``>`` are numbers and stand on the right."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in columns:
        right = title.startswith(">")
        grid.add_column(
            title.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        grid.add_row(*(escape(number(cell)) for cell in row))
    console().print(grid)


def number(value: object) -> str:
    """Whole numbers in groups of three, the rest as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def share(part: float, whole: float) -> str:
    """A part in percent; empty where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def size(count: int) -> str:
    """Bytes in the largest binary unit that keeps them readable."""
    amount = float(max(0, count))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
