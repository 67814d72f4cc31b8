"""Bars that lie below their names, for names of any length."""

from __future__ import annotations

from kvferry.replay.advise.page.frame import (
    SMALL_PX,
    TEXT_PX,
    Size,
    bar,
    fitted,
    line,
    scale,
    svg,
    text,
    ticks,
    width_of,
)
from kvferry.replay.advise.parts import Plot, figure

BAR_HEIGHT, GAP, EDGE = 13.0, 6.0, 2.0


def across(plot: Plot, size: Size) -> str:
    """The plot; every value stands behind its bar."""
    top, step = scale(plot)
    values = [value for row in plot.series.values() for value in row if value is not None]
    behind = GAP + max((width_of(figure(value), SMALL_PX) for value in values), default=0.0)
    behind = max(behind, width_of(figure(top), SMALL_PX) / 2)
    per_value = (size.width - EDGE - behind) / top
    bars, base = _rows(plot, size, per_value)
    marks = []
    for value in ticks(top, step):
        x = EDGE + value * per_value
        marks.append(line(x, 0, x, base, "grid" if value else "base"))
        anchor = "middle" if value else "start"
        marks.append(text(figure(value), x if value else 0, base + 16, "tick", anchor))
    marks += bars
    end = base + 16 + TEXT_PX + GAP
    middle = EDGE + top * per_value / 2
    marks.append(text(plot.axis or plot.unit, middle, end, "unit", "middle"))
    return svg(plot, size, end + GAP, marks)


def _rows(plot: Plot, size: Size, per_value: float) -> tuple[list[str], float]:
    """Each name with its bars below it, and where the last one ends."""
    marks, y = [], GAP
    for place, label in enumerate(plot.labels):
        y += TEXT_PX
        marks.append(text(fitted(label, TEXT_PX, size.width - GAP), GAP, y, "name"))
        y += GAP
        for number, values in enumerate(plot.series.values()):
            value = values[place]
            if value is not None:
                width = max(0.0, value) * per_value
                marks.append(bar(plot, number, place, (EDGE, y, width, BAR_HEIGHT - 1)))
                after = EDGE + width + GAP
                marks.append(text(figure(value), after, y + BAR_HEIGHT - 3, "value"))
                y += BAR_HEIGHT
        y += 2 * GAP
    return marks, y
