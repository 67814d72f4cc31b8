"""The report of `kvferry advise` as a real browser shows it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from tests.browser.opening import HEIGHT_PX, SCREEN_PX, TELEPHONE_PX, Opened, Scheme, Shown
from tests.browser.reports import (
    badly_named,
    of_a_ledger,
    of_a_trace,
    of_an_observed_ledger,
)

from kvferry.replay.advise.page.html import as_html

LOOK = (Path(__file__).parent / "looking.js").read_text("utf-8")
WIDTHS_PX = (TELEPHONE_PX, SCREEN_PX)
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
SCROLL_TIMEOUT_S = 10.0
A4_PX = 718
"""Between the margins that the page's style asks for, at 96 pixels an inch."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Reports by what they are of."""
    trace = of_a_trace(tmp_path_factory.mktemp("trace"))
    ledger = of_a_ledger()
    found = {
        "a trace": trace,
        "a ledger": ledger,
        "an observed ledger": of_an_observed_ledger(),
        "bad names": badly_named(ledger),
    }
    return {name: as_html(report) for name, report in found.items()}


def troubles(shown: Shown) -> list[str]:
    """Everything that is wrong with a page as it is shown."""
    found: list[str] = shown.page.evaluate(LOOK)
    asked = [f"asked for {address}" for address in shown.requests]
    return [*found, *asked, *shown.troubles]


def violations(shown: Shown) -> list[str]:
    """What axe-core finds against the rules of accessibility."""
    found = Axe().run(shown.page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in found]


@pytest.mark.parametrize("of", ["a trace", "a ledger", "an observed ledger", "bad names"])
def test_a_report_is_good_to_look_at(pages: dict[str, str], opened: Opened, of: str) -> None:
    shown = opened(pages[of])
    for scheme in SCHEMES:
        shown.page.emulate_media(color_scheme=scheme)
        for width_px in WIDTHS_PX:
            shown.page.set_viewport_size({"width": width_px, "height": HEIGHT_PX})
            assert troubles(shown) == [], (width_px, scheme)
        assert violations(shown) == [], scheme
    assert shown.page.title() == "Does moving KV between engines pay here?"
    assert shown.page.locator("script, img, iframe, link").count() == 0


def test_both_schemes_are_told_apart(pages: dict[str, str], opened: Opened) -> None:
    colours = {}
    page = opened(pages["a trace"]).page
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        colours[scheme] = [
            page.evaluate(
                "([where, what]) => getComputedStyle(document.querySelector(where))[what]", pair
            )
            for pair in (["body", "backgroundColor"], ["body", "color"], ["rect.s0", "fill"])
        ]
    assert all(one != other for one, other in zip(*colours.values(), strict=True)), colours
    page_in_dark, text_in_dark, _ = colours["dark"]
    assert brightness(page_in_dark) < 100 < brightness(text_in_dark)
    assert brightness(colours["light"][0]) > 600


def brightness(colour: str) -> float:
    return sum(float(part) for part in re.findall(r"[\d.]+", colour)[:3])


def test_a_table_wider_than_a_telephone_scrolls_by_keyboard(
    pages: dict[str, str], opened: Opened
) -> None:
    page = opened(pages["a ledger"], TELEPHONE_PX).page
    wide = page.locator(".table").evaluate_all(
        "tables => tables.findIndex(one => one.scrollWidth > one.clientWidth + 20)"
    )
    assert wide >= 0, "no table is wide: the test tells nothing"
    for _ in range(wide + 1):
        page.keyboard.press("Tab")
    table = page.locator(".table").nth(wide)
    assert table.evaluate("element => element === document.activeElement")
    page.keyboard.press("ArrowRight")
    until = time.monotonic() + SCROLL_TIMEOUT_S
    while not table.evaluate("element => element.scrollLeft"):
        assert time.monotonic() < until, "the arrow did not scroll it"
        page.wait_for_timeout(20)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_printed_in_dark_letters_and_fits_the_paper(
    pages: dict[str, str], opened: Opened, scheme: Scheme
) -> None:
    shown = opened(pages["a ledger"], A4_PX, scheme)
    shown.page.emulate_media(media="print")
    assert troubles(shown) == []
    letters = shown.page.evaluate("getComputedStyle(document.body).color")
    assert brightness(letters) == 0
    assert len(shown.page.pdf(format="A4")) > 20_000


BREAK = {
    "an overlong name that may not break": (
        r"overflow-wrap: (anywhere|break-word)", "overflow-wrap: normal", "px wide in a window",
    ),
    "a plot without bars": (r'(class="bar[^>]*) height="[^"]*"', r'\1 height="0"', "no bar can be"),
    "a bar that leaves its plot": (r'(class="bar s0[^>]*) y="', r'\1 y="-9', "a bar leaves"),
    "a label outside": (r'(<text class="tick") x="', r'\1 x="-9', "text leaves the plot"),
    "labels over each other": (r'(<text class="tick") x="[\d.]+" y="[\d.]+"',
                               r'\1 x="60" y="60"', "texts overlap"),
    "pale letters": (r"--soft: #546072", "--soft: #b9c1cc", "pale text"),
    "bars as pale as the page": (r"--s0: #2563c9", "--s0: #f2f6ff", "as pale as the page"),
    "a picture too many": (r"\.beside svg\.narrow \{ display: none; \}", "", "2 pictures"),
    "something from the network": (
        r"<header>", '<header><img alt="" src="http://127.0.0.1:9/a.png">', "127.0.0.1:9",
    ),
    "a script": (r"<header>", "<header><script>1</script>", "Content Security Policy"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BREAK)
def test_a_broken_report_is_found_out(pages: dict[str, str], opened: Opened, fault: str) -> None:
    pattern, instead, told = BREAK[fault]
    text, count = re.subn(pattern, instead, pages["bad names"])
    assert count, "nothing was broken"
    shown = opened(text)
    shown.page.wait_for_load_state("networkidle")
    found = troubles(shown)
    assert any(told in one for one in found), found


def test_axe_finds_pale_letters(pages: dict[str, str], opened: Opened) -> None:
    shown = opened(pages["a trace"].replace("--soft: #546072", "--soft: #b9c1cc"))
    assert any(one.startswith("color-contrast") for one in violations(shown))
