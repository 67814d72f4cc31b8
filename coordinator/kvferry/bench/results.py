"""What the benchmarks share: where figures go, and how they are summed up."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the figures there; - for stdout only."),
]


def publish(title: str, figures: Mapping[str, Any], json_file: Path | None) -> None:
    """Show figures to people, one a line, and write them with their circumstances as JSON.

    Args:
        title: what was measured.
        figures: stable keys; nested mappings and lists go into the document only.
        json_file: as :data:`JsonFile`; ``-`` prints the document instead of the lines.
    """
    write(figures, json_file, lambda: _lines(title, figures))


def write(figures: Mapping[str, Any], json_file: Path | None, show: Callable[[], None]) -> None:
    """Let ``show`` show the figures to people, and write them with their circumstances as JSON.

    Args:
        figures: stable keys.
        json_file: as :data:`JsonFile`; ``-`` prints the document, and nothing is shown.
        show: called unless the document goes to stdout.
    """
    document = json.dumps({**figures, "circumstances": circumstances()}, indent=2)
    if json_file is not None and str(json_file) == "-":
        typer.echo(document)
        return
    # Before anybody is shown anything: whoever reads may close the pipe after the first lines.
    if json_file is not None:
        json_file.write_text(document + "\n")
    show()


def _lines(title: str, figures: Mapping[str, Any]) -> None:
    typer.echo(title)
    for key, value in figures.items():
        if not isinstance(value, Mapping | list | tuple):
            typer.echo(f"  {key:<28} {shown(value)}")


def circumstances() -> dict[str, Any]:
    """Where and when figures were taken."""
    try:
        version = importlib.metadata.version("kvferry")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "kvferry": version,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 1),
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ascending values lie; the nearest one that is."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def shown(value: object) -> str:
    """A figure for people: whole numbers in groups of three, others with three digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
