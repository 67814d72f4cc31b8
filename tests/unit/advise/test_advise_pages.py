"""The report as HTML, Markdown and plots."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from tests.unit.advise.recorded import conversations, strangers, written

from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.files import advise_file
from kvferry.replay.advise.markdown import as_markdown
from kvferry.replay.advise.page.across import across
from kvferry.replay.advise.page.frame import NARROW, WIDE, Size
from kvferry.replay.advise.page.html import as_html
from kvferry.replay.advise.page.upright import upright
from kvferry.replay.advise.parts import Plot
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.sections import sections

COSTS = Costs(prefill_tokens_per_s=512, kv_bytes_per_token=1, link_gb_per_s=1e-6)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return advise_file(written(tmp_path, conversations(apart_s=15)), COSTS, 600.0)


class Page(HTMLParser):
    """Which tags and addresses a page has, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_has_plots(report: Report) -> None:
    text = as_html(report)
    page = Page(text)
    assert page.open == []
    # A wide and a narrow picture of what repeats, gaps and links; TTFT of one length only.
    assert page.tags.count("svg") == 2 * 4
    assert "script" not in page.tags
    assert page.links == []
    assert "http" not in text.replace("http-equiv", "")
    assert "Enable it." in text


def test_names_from_outside_are_text_only(report: Report) -> None:
    nasty = "<script>alert(1)</script>|`"
    link = msgspec.structs.replace(report.links[0], source=nasty)
    changed = msgspec.structs.replace(report, of=nasty, links=(link,))
    assert "script" not in Page(as_html(changed)).tags
    markdown = as_markdown(changed)
    assert "\\<script>" in markdown
    row = next(line for line in markdown.splitlines() if "to prefill" in line and line[0] == "|")
    assert row.replace("\\|", "").count("|") == 8, "a name cannot begin another column"


def test_every_section_is_in_both_and_rows_fit_their_columns(report: Report) -> None:
    markdown, page = as_markdown(report), as_html(report)
    first, *rest = sections(report)
    assert f"## {first.title}" in markdown
    assert first.title.removeprefix("Recommendation: ") in page
    for section in rest:
        assert f"## {section.title}" in markdown
        assert f"<h2>{section.title}</h2>" in page
        for row in section.rows:
            assert len(row) == len(section.columns)


def test_do_not_enable_is_said_first(tmp_path: Path) -> None:
    report = advise_file(written(tmp_path, strangers()), COSTS, 600.0)
    assert sections(report)[0].title == "Recommendation: Do not enable this."
    assert "Do not enable this." in as_html(report)
    assert "no session came back" in as_markdown(report)


def bars(picture: str) -> list[ET.Element]:
    root = ET.fromstring(picture)
    return [rect for rect in root.iter("rect") if rect.find("title") is not None]


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_bars_are_as_long_as_their_values(size: Size) -> None:
    plot = Plot(
        title="a & b", unit="s", labels=("x", "y"), series={"one": (1.0, 2.0), "two": (None, 0.0)}
    )
    for draw, side in ((upright, "height"), (across, "width")):
        picture = draw(plot, size)
        lengths = [float(rect.attrib[side]) for rect in bars(picture)]
        assert len(lengths) == 3, "no bar where there is no value"
        assert 0 in lengths
        one, two = sorted(lengths)[1:]
        assert two == pytest.approx(2 * one, abs=0.11)
        assert ET.fromstring(picture).attrib["aria-label"] == "a & b, in s"


@pytest.mark.parametrize("values", [(), (0.0,), (1e-9,), (3e12,), (None,)])
@pytest.mark.parametrize("draw", [upright, across])
def test_any_values_can_be_drawn(
    values: tuple[float | None, ...], draw: Callable[[Plot, Size], str]
) -> None:
    labels = tuple("x" * 40 for _ in values)
    plot = Plot(title="t", unit="u", labels=labels, series={"s": values})
    ET.fromstring(draw(plot, NARROW))
