"""The report as one HTML file: no script, nothing from the network."""

from __future__ import annotations

from html import escape

from kvferry.replay.advise.markdown import shown
from kvferry.replay.advise.parts import Section
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.sections import TITLE, sections
from kvferry.replay.advise.svg import as_svg

_STYLE = """
:root { color-scheme: light dark; --text: #1d2330; --page: #fff; --soft: #5c6678;
  --line: #dfe3ea; --a: #2f6fd6; --b: #e08a1e; --c: #2f9e6e; --d: #9456c4; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ef; --page: #14171d; --soft: #9aa4b5; --line: #2c323d;
    --a: #6ea3f5; --b: #f0ac57; --c: #62c99a; --d: #bd8fe3; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 860px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.verdict { border-left: 5px solid var(--b); padding: .2rem 1rem; }
.verdict.enable { border-color: var(--c); }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; }
th { color: var(--soft); font-weight: 600; } .n { text-align: right; }
svg { width: 100%; height: auto; margin: .8rem 0; }
svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
svg .title { font-weight: 600; font-size: 13px; } svg .tick, svg .value { fill: var(--soft); }
svg .value { font-size: 10.5px; } svg .grid { stroke: var(--line); }
.s0 { fill: var(--a); } .s1 { fill: var(--b); } .s2 { fill: var(--c); } .s3 { fill: var(--d); }
.wide { overflow-x: auto; }
"""


def as_html(report: Report) -> str:
    """A whole page, to be opened from disk."""
    first, *rest = sections(report)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(TITLE)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(TITLE)}</h1>",
            f'<div class="verdict {report.verdict.word}">{_section(first)}</div>',
            *(_section(one) for one in rest),
            "</body></html>\n",
        ]
    )


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    if section.lines:
        items = "".join(f"<li>{escape(text)}</li>" for text in section.lines)
        parts.append(f"<ul>{items}</ul>")
    parts += [as_svg(plot) for plot in section.plots]
    if section.rows:
        parts.append(_table(section))
    return "\n".join(parts)


def _table(section: Section) -> str:
    kinds = [' class="n"' if title.startswith(">") else "" for title in section.columns]
    head = "".join(
        f"<th{kind}>{escape(title.removeprefix('>'))}</th>"
        for kind, title in zip(kinds, section.columns, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{escape(shown(cell))}</td>" for kind, cell in zip(kinds, row, strict=True)
        )
        + "</tr>\n"
        for row in section.rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>\n{rows}</table></div>'
