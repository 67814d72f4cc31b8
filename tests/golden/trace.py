"""A trace for the Perfetto UI as text: what a viewer would draw, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.replay.test_perfetto import Read

NS_PER_MS = 1_000_000


def drawn(path: Path) -> str:
    """Every track with its slices and instants; times from the first one on."""
    read = Read(path)
    first_ns = min(one["begin"] for one in [*read.slices, *read.instants])
    numbers: dict[int, int] = {}
    rows: dict[str, list[tuple[int, str]]] = {}
    for one in [*read.slices, *read.instants]:
        row = rows.setdefault(" / ".join(one["where"]), [])
        row.append((one["begin"], _line(one, first_ns, numbers)))
    lines = []
    for where in sorted(rows):
        lines.append(where)
        lines += [f"  {line}" for _, line in sorted(rows[where])]
    return "\n".join(lines)


def _line(one: dict[str, Any], first_ns: int, numbers: dict[int, int]) -> str:
    at_ms = (one["begin"] - first_ns) / NS_PER_MS
    text = f"{at_ms:10.3f} ms  {one['name']}"
    if "end" in one:
        text += f", {(one['end'] - one['begin']) / NS_PER_MS:.3f} ms"
    for what, flows in (("begins", one["flows"]), ("ends", one["arrivals"])):
        for flow in sorted(flows):
            text += f", {what} flow {numbers.setdefault(flow, len(numbers) + 1)}"
    return text
