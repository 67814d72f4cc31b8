"""What a report is shown as: headings, lines, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Cell = str | int

_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Bars in groups: for each label one value of each series; None where there is none."""

    title: str
    unit: str
    labels: tuple[str, ...]
    series: Mapping[str, tuple[float | None, ...]]
    axis: str = ""
    """What the labels are, for the axis below the bars."""
    names: bool = False
    """The labels are names of any length: bars lie below them, instead of standing side by side."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the report. Columns whose title begins with ``>`` are numbers."""

    title: str
    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    plots: tuple[Plot, ...] = ()


def share(part: float, whole: float) -> str:
    """A part in percent; empty where there is no whole."""
    return f"{part / whole:.1%}" if whole else ""


def figure(value: float) -> str:
    """Three digits, and never an exponent: ``0.0123``, ``4.56``, ``1,234``."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.001:
        return f"{value:.6f}".rstrip("0").rstrip(".") or "0"
    return f"{value:.3g}"


def time(seconds: float) -> str:
    """In the unit that suits it."""
    if seconds < 1:
        return f"{figure(seconds * 1_000)} ms" if seconds > 0 else "0 s"
    if seconds < 120:
        return f"{figure(seconds)} s"
    if seconds < 3_600:
        return f"{_tenth(seconds / 60)} min"
    return f"{_tenth(seconds / 3_600)} h"


def part_of(part_s: float, whole_s: float) -> str:
    """Two times in one unit, that of the lesser: ``14.4 of 80.4 min``."""
    said = time(part_s if part_s > 0 else whole_s)
    unit = said.split()[1]
    per = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3_600.0}[unit]
    return f"{figure(part_s / per)} of {figure(whole_s / per)} {unit}"


def size(amount: float) -> str:
    """Bytes in the unit that suits them."""
    for unit, least in _BYTES:
        if amount >= least:
            return f"{figure(amount / least)} {unit}"
    return f"{figure(amount)} B"


def rate(bytes_s: float) -> str:
    """Of a link."""
    return f"{size(bytes_s)}/s"


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun, as ``1 turn`` and ``2 turns``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _tenth(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
