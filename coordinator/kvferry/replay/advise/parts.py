"""What a report is shown as: headings, lines, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Cell = str | int


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Bars in groups: for each label one value of each series; None where there is none."""

    title: str
    unit: str
    labels: tuple[str, ...]
    series: Mapping[str, tuple[float | None, ...]]


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


def time(seconds: float) -> str:
    """In the unit that suits it."""
    if seconds < 120:
        return f"{seconds:,.3g} s"
    if seconds < 7_200:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds / 3_600:,.1f} h"
