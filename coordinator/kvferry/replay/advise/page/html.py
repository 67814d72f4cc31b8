"""The page: what the sections say, with plots and tables side by side where there is room."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from importlib.resources import files

from kvferry.replay.advise.markdown import shown
from kvferry.replay.advise.page.across import across
from kvferry.replay.advise.page.frame import COLOURS, NARROW, WIDE, Size
from kvferry.replay.advise.page.upright import upright
from kvferry.replay.advise.parts import Plot, Section
from kvferry.replay.advise.report import AGAINST, FOR, NEITHER, Report
from kvferry.replay.advise.sections import TITLE, WORDS, sections, source
from kvferry.replay.advise.tiles import Tile, tiles

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""No browser runs a script of the page or fetches anything for it, whatever the names in it say."""
NAMELESS = "(no name)"
_FIGURE = re.compile(r"(\d) (ms|s|min|h|[kMGT]?B(?:/s)?)\b")
_COMMAND = re.compile(r"`([^`<>]+)`|(?<![\w`])(--[a-z][a-z-]+)")
SIGNS = {FOR: ("+", "for it"), AGAINST: ("−", "against it"), NEITHER: ("i", "to know")}


def as_html(report: Report) -> str:
    """A whole page, to be opened from disk, sent or printed."""
    _, *rest = sections(report)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(TITLE)}</title><style>{_style()}</style></head><body>",
            '<header><p class="eyebrow">kvferry advise</p>',
            f'<h1>{escape(TITLE)}</h1><p class="source">{escape(source(report))}</p></header>',
            "<main>",
            _verdict(report),
            *(_section(one) for one in rest),
            "</main></body></html>\n",
        ]
    )


@cache
def _style() -> str:
    return files("kvferry.replay.advise.page").joinpath("style.css").read_text("utf-8")


def _verdict(report: Report) -> str:
    verdict = report.verdict
    reasons = "\n".join(
        f'<li class="{one.weighs}"><span class="sign" aria-hidden="true">{SIGNS[one.weighs][0]}'
        f'</span><span><span class="unseen">{SIGNS[one.weighs][1]}: </span>'
        f"{_said(one.text)}</span></li>"
        for one in verdict.reasons
    )
    return (
        f'<section class="card verdict {verdict.word}" aria-labelledby="verdict">'
        '<p class="eyebrow">Recommendation</p>'
        f'<h2 id="verdict">{escape(WORDS[verdict.word])}</h2>{_tiles(tiles(report))}'
        f'<ul class="reasons">{reasons}</ul>'
        f'<p class="rule"><strong>The rule.</strong> {escape(verdict.rule)}</p></section>'
    )


def _tiles(shown_tiles: list[Tile]) -> str:
    if not shown_tiles:
        return ""
    items = "\n".join(
        f'<div class="tile"><dt>{escape(one.label)}</dt><dd class="value">{_said(one.value)}</dd>'
        f'<dd class="note">{_said(one.note)}</dd></div>'
        for one in shown_tiles
    )
    return f'<dl class="tiles">{items}</dl>'


def _section(section: Section) -> str:
    parts = [f'<section class="card"><h2>{escape(section.title)}</h2>']
    if len(section.lines) > 1:
        items = "".join(f"<li>{_said(text)}</li>" for text in section.lines)
        parts.append(f'<ul class="lines">{items}</ul>')
    else:
        parts += [f'<p class="lines">{_said(text)}</p>' for text in section.lines]
    several = len(section.plots) > 1
    figures = "\n".join(_figure(plot, several=several) for plot in section.plots)
    if several:
        columns = "four" if len(section.plots) % 4 == 0 else "three"
        figures = f'<div class="several {columns}">{figures}</div>'
        figures = f"<div>{_legend(section.plots)}{figures}</div>"
    table = _table(section) if section.rows else ""
    if figures or table:
        kind = "stacked" if several else "beside"
        parts.append(f'<div class="{kind}">{figures}{table}</div>')
    return "\n".join([*parts, "</section>"])


def _figure(plot: Plot, *, several: bool) -> str:
    """A plot in both sizes, of which the style shows one; beside others in the narrow one only,
    and with a legend for all."""
    sizes = (NARROW,) if several else (WIDE, NARROW)
    pictures = "\n".join(_picture(plot, size) for size in sizes)
    legend = "" if several else _legend((plot,))
    return f"<figure><figcaption>{escape(plot.title)}</figcaption>{legend}{pictures}</figure>"


def _picture(plot: Plot, size: Size) -> str:
    return across(plot, size) if plot.names else upright(plot, size)


def _legend(plots: tuple[Plot, ...]) -> str:
    """Of plots with the same series."""
    names = tuple(plots[0].series)
    if len(names) < 2:
        return ""
    items = "".join(
        f'<li><span class="key s{number % COLOURS}"></span>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _table(section: Section) -> str:
    """A table in a box that scrolls, also by keyboard, where it is wider than the page."""
    kinds = [' class="n"' if title.startswith(">") else "" for title in section.columns]
    head = "".join(
        f'<th scope="col"{kind}>{escape(title.removeprefix(">"))}</th>'
        for kind, title in zip(kinds, section.columns, strict=True)
    )
    rows = "\n".join(
        f'<tr><th scope="row">{escape(shown(row[0]).strip() or NAMELESS)}</th>'
        + "".join(
            f"<td{kind}>{escape(shown(cell))}</td>"
            for kind, cell in zip(kinds[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in section.rows
    )
    name = escape(section.title)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{name}, as a table">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _said(text: str) -> str:
    """A line as a sentence: commands as code, and no line ends between a figure and its unit."""
    begun = _FIGURE.sub("\\1\u00a0\\2", escape(text[:1].upper() + text[1:]))
    return _COMMAND.sub(lambda found: f"<code>{found[1] or found[2]}</code>", begun)
