"""What the plots have in common: their sizes, the width of text, scales and marks."""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

from kvferry.replay.advise.parts import Plot, figure

COLOURS = 4
"""Classes ``s0`` to ``s3`` of the page's style."""
TEXT_PX, SMALL_PX = 12.0, 11.0
"""Sizes of letters, those of the page's style: of names and units, and of ticks and values."""
LETTER_SHARE = 0.64
"""Width of a letter by its size, in a font with wide ones: what fits in it fits in others."""


class Size(NamedTuple):
    """A plot's width in its own units, which are nearly pixels, and the height of its bars."""

    name: str
    width: float
    bars_height: float


WIDE = Size("wide", 640.0, 190.0)
NARROW = Size("narrow", 340.0, 150.0)
"""For telephones, and for several plots side by side."""


def svg(plot: Plot, size: Size, height: float, marks: list[str]) -> str:
    """The whole picture."""
    view = f"0 0 {size.width:g} {height:.0f}"
    head = (
        f'<svg class="{size.name}" viewBox="{view}" role="img" aria-label="{escape(said(plot))}">'
    )
    return "\n".join([head, *marks, "</svg>"])


def said(plot: Plot) -> str:
    """The plot in words, for those who do not see it; the table beside it has its figures."""
    what = f"{plot.title}, in {plot.unit}"
    return f"{what}, by {plot.axis}" if plot.axis else what


def width_of(text: str, letter_px: float) -> float:
    """At most."""
    return len(text) * letter_px * LETTER_SHARE


def fitted(text: str, letter_px: float, width: float) -> str:
    """As much of a text as there is room for, and a sign if that is not all."""
    if width_of(text, letter_px) <= width:
        return text
    return text[: max(1, int(width / (letter_px * LETTER_SHARE)) - 1)] + "…"


def scale(plot: Plot) -> tuple[float, float]:
    """The axis' end and its steps: 1, 2 or 5 times a power of ten, six of them at most, and whole
    numbers where all values are."""
    values = [value for row in plot.series.values() for value in row if value is not None]
    most = max(values, default=0.0)
    if most <= 0 or not math.isfinite(most):
        return 1.0, 0.5
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(power * times for times in (1, 2, 5, 10) if most / (power * times) <= 6)
    if all(value == int(value) for value in values):
        step = max(1.0, step)
    return step * math.ceil(most / step - 1e-9), step


def ticks(top: float, step: float) -> list[float]:
    """From 0 to the axis' end."""
    return [number * step for number in range(round(top / step) + 1)]


def text(
    content: str, x: float, y: float, kind: str = "", anchor: str = "start", turn: str = ""
) -> str:
    """Text with its end or middle at ``x``."""
    style = f' class="{kind}"' if kind else ""
    return (
        f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>'
        f"{escape(content)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def bar(plot: Plot, number: int, place: int, box: tuple[float, float, float, float]) -> str:
    """One value as a bar within (x, y, width, height), which tells what it is when pointed at."""
    name, values = list(plot.series.items())[number]
    value = values[place] or 0.0
    x, y, width, height = box
    label = plot.labels[place]
    of = f"{label}, {name}" if len(plot.series) > 1 else label
    return (
        f'<rect class="bar s{number % COLOURS}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}"><title>{escape(of)}: {figure(value)} {escape(plot.unit)}'
        "</title></rect>"
    )
