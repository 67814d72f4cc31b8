"""Tables of the live view: no lines, and nothing that wraps."""

from __future__ import annotations

from rich.table import Table


def grid(*columns: str) -> Table:
    """Columns whose title begins with ``>`` are numbers and stand on the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for title in columns:
        right = title.startswith(">")
        made.add_column(
            title.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    return made
