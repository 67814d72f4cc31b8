"""The report as Markdown."""

from __future__ import annotations

from kvferry.replay.advise.parts import Cell, Section
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.sections import TITLE, sections, source


def as_markdown(report: Report) -> str:
    """One document with a table for each section; plots are for HTML."""
    head = [f"# {TITLE}", "", _escaped(source(report)), ""]
    return "\n".join([*head, *(_section(one) for one in sections(report))])


def _section(section: Section) -> str:
    lines = [f"## {section.title}", ""]
    if section.lines:
        lines += [*(f"- {_escaped(text)}" for text in section.lines), ""]
    if section.rows:
        names = [title.removeprefix(">") for title in section.columns]
        rule = ["---:" if title.startswith(">") else "---" for title in section.columns]
        lines += [_row(names), "| " + " | ".join(rule) + " |"]
        lines += [*(_row(cells) for cells in section.rows), ""]
    return "\n".join(lines)


def _row(cells: tuple[Cell, ...] | list[str]) -> str:
    return "| " + " | ".join(_escaped(shown(cell)) for cell in cells) + " |"


def shown(cell: Cell) -> str:
    """Whole numbers in groups of three."""
    return f"{cell:,}" if isinstance(cell, int) else cell


def _escaped(text: str) -> str:
    for char in "\\|<*_":
        text = text.replace(char, "\\" + char)
    return text.replace("\n", " ")
