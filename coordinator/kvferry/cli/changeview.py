"""Changes of a state as lines."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from kvferry.replay.diff.change import ADDED, CHANGED, REMOVED, Change

SHOWN_MAX = 40
"""Changes of one moment that are printed; a JSON document always has all."""
MARKS = {ADDED: "+", REMOVED: "-", CHANGED: "~"}


def print_changes(changes: Sequence[Change]) -> None:
    """One line each: + what is new, - what is gone, ~ what is another one now."""
    for one in changes[:SHOWN_MAX]:
        kind = f"{one.kind}: " if one.id in one.fields else ""
        typer.echo(plain(f"    {MARKS[one.change]} {kind}{one.text}"))
    if len(changes) > SHOWN_MAX:
        typer.echo(f"    and {len(changes) - SHOWN_MAX:,} more; --json has all")


def plain(text: str) -> str:
    """Without anything that could steer a terminal: some of it comes from clients."""
    return "".join(one if one.isprintable() else "?" for one in text)
