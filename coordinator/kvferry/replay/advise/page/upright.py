"""Bars side by side, for labels that are short and in order."""

from __future__ import annotations

import math

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

TOP, RIGHT = 36.0, 4.0
"""Above the bars stand the unit and the highest bar's value."""
GAP = 8.0
BAR_WIDTH_MAX = 46.0
SLANT = math.radians(35)
LABEL_LENGTH_MAX = 110.0


def upright(plot: Plot, size: Size) -> str:
    """The plot; values stand above their bars where there is room."""
    top, step = scale(plot)
    left = GAP + max(width_of(figure(value), SMALL_PX) for value in ticks(top, step))
    slot = (size.width - left - RIGHT) / max(1, len(plot.labels))
    base = TOP + size.bars_height
    labels, depth = _labels(plot, left, slot, base)
    marks = [text(plot.unit, 0, TEXT_PX, "unit")]
    for value in ticks(top, step):
        y = base - size.bars_height * value / top
        marks.append(line(left, y, size.width - RIGHT, y, "grid" if value else "base"))
        marks.append(text(figure(value), left - GAP, y + 4, "tick", "end"))
    for place in range(len(plot.labels)):
        marks += _group(plot, place, left + slot * place, slot, base, size.bars_height / top)
    marks += labels
    end = base + depth
    if plot.axis:
        end += TEXT_PX + GAP
        marks.append(text(plot.axis, (left + size.width - RIGHT) / 2, end, "unit", "middle"))
    return svg(plot, size, end + GAP, marks)


def _group(
    plot: Plot, place: int, x: float, slot: float, base: float, per_value: float
) -> list[str]:
    """The bars of one label."""
    marks = []
    count = max(1, len(plot.series))
    width = min(BAR_WIDTH_MAX, slot * 0.8 / count)
    room = slot if count == 1 else width
    x += (slot - width * count) / 2
    for number, values in enumerate(plot.series.values()):
        value = values[place]
        if value is not None:
            height = max(0.0, value) * per_value
            box = (x + 1, base - height, width - 2, height)
            marks.append(bar(plot, number, place, box))
            said = _shortest(value, room)
            if said:
                marks.append(text(said, x + width / 2, base - height - 5, "value", "middle"))
        x += width
    return marks


def _shortest(value: float, room: float) -> str:
    """The value as exactly as there is room for; empty if there is none."""
    rounded = f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
    tries = (figure(value), rounded)
    return next((said for said in tries if width_of(said, SMALL_PX) <= room + 2), "")


def _labels(plot: Plot, left: float, slot: float, base: float) -> tuple[list[str], float]:
    """Names below the bars, aslant where they do not fit side by side, and how deep they reach."""
    longest = max((width_of(label, TEXT_PX) for label in plot.labels), default=0.0)
    y = base + TEXT_PX + GAP
    middles = [left + slot * (place + 0.5) for place in range(len(plot.labels))]
    pairs = list(zip(plot.labels, middles, strict=True))
    if longest <= slot - 4:
        return [text(label, x, y, "", "middle") for label, x in pairs], TEXT_PX + GAP
    marks = []
    for label, x in pairs:
        short = fitted(label, TEXT_PX, min(LABEL_LENGTH_MAX, x / math.cos(SLANT)))
        turn = f' transform="rotate(-{math.degrees(SLANT):.0f} {x + 4:.1f} {y:.1f})"'
        marks.append(text(short, x + 4, y, "", "end", turn))
    return marks, TEXT_PX + GAP + min(longest, LABEL_LENGTH_MAX) * math.sin(SLANT)
