"""Bar plots as SVG, without any library or script."""

from __future__ import annotations

import math
from html import escape

from kvferry.replay.advise.parts import Plot

WIDTH, HEIGHT = 760, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 56, 64
COLOURS = 4
"""Classes ``s0`` to ``s3`` of the page's style."""
LABEL_CHARS_MAX = 22
LETTER = 6.5
"""Mean width of one, in the plot's units; labels that do not fit side by side stand aslant."""


def as_svg(plot: Plot) -> str:
    """The plot; every bar has its value as a tooltip and, where there is room, above it."""
    most = max((v for values in plot.series.values() for v in values if v is not None), default=0)
    top, step = _scale(most)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}">',
        f'<text class="title" x="{LEFT}" y="20">{escape(plot.title)}</text>',
        *_legend(plot),
        *_axis(plot, top, step),
        *_bars(plot, top),
        "</svg>",
    ]
    return "\n".join(parts)


def _scale(most: float) -> tuple[float, float]:
    """The axis' end and its steps: 1, 2 or 5 times a power of ten, four to ten of them."""
    if most <= 0 or not math.isfinite(most):
        return 1.0, 0.5
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(power * times for times in (1, 2, 5, 10) if most / (power * times) <= 6)
    return step * math.ceil(most / step - 1e-9), step


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _legend(plot: Plot) -> list[str]:
    if len(plot.series) < 2:
        return []
    parts, x = [], LEFT
    for number, name in enumerate(plot.series):
        parts.append(f'<rect class="s{number % COLOURS}" x="{x}" y="30" width="11" height="11"/>')
        parts.append(f'<text x="{x + 16}" y="40">{escape(name)}</text>')
        x += 34 + 7 * len(name)
    return parts


def _axis(plot: Plot, top: float, step: float) -> list[str]:
    parts = []
    for number in range(round(top / step) + 1):
        value = number * step
        y = _y(value, top)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" '
            f'text-anchor="end">{value:,.4g}</text>'
        )
    parts.append(f'<text class="tick" x="8" y="{TOP - 6}">{escape(plot.unit)}</text>')
    return parts


def _bars(plot: Plot, top: float) -> list[str]:
    parts = []
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(plot.labels))
    bar = min(48.0, slot * 0.8 / max(1, len(plot.series)))
    longest = max((len(label) for label in plot.labels), default=0)
    aslant = LETTER * min(longest, LABEL_CHARS_MAX) > slot
    for place, label in enumerate(plot.labels):
        middle = LEFT + slot * (place + 0.5)
        parts.append(_label(label, middle, aslant=aslant))
        x = middle - bar * len(plot.series) / 2
        for number, (name, values) in enumerate(plot.series.items()):
            value = values[place]
            if value is not None:
                parts += _bar(f"{label}, {name}", value, plot.unit, top, x, bar, number)
            x += bar
    return parts


def _bar(
    name: str, value: float, unit: str, top: float, x: float, width: float, number: int
) -> list[str]:
    y = _y(max(0.0, value), top)
    height = HEIGHT - BOTTOM - y
    said = f"{value:,.3g}"
    parts = [
        f'<rect class="s{number % COLOURS}" x="{x + 1:.1f}" y="{y:.1f}" '
        f'width="{width - 2:.1f}" height="{height:.1f}">'
        f"<title>{escape(name)}: {said} {escape(unit)}</title></rect>"
    ]
    if LETTER * len(said) <= width + 2:
        parts.append(
            f'<text class="value" x="{x + width / 2:.1f}" y="{y - 4:.1f}" '
            f'text-anchor="middle">{said}</text>'
        )
    return parts


def _label(text: str, x: float, *, aslant: bool) -> str:
    short = text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"
    y = HEIGHT - BOTTOM + 18
    if not aslant:
        return f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(short)}</text>'
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="end" '
        f'transform="rotate(-30 {x:.1f} {y})">{escape(short)}</text>'
    )
