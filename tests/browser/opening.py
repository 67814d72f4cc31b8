"""Opening a page in Chromium as somebody with a telephone or a wide screen would."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

Scheme = Literal["light", "dark"]
TELEPHONE_PX, SCREEN_PX, HEIGHT_PX = 390, 1440, 900


class Shown:
    """A page that is open.

    Attributes:
        page: the page itself.
        troubles: what the browser complained of: errors of scripts, of loading, of the page's own
            policy.
        requests: addresses that it asked for, but for the page itself.
    """

    def __init__(self, context: BrowserContext, file: Path) -> None:
        self.page: Page = context.new_page()
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self._address = file.as_uri()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", self._asked)
        self.page.goto(self._address)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(message.text)

    def _asked(self, request: Request) -> None:
        if request.url != self._address:
            self.requests.append(request.url)


class Opened:
    """Opens texts as pages.

    Args:
        browser: a running one.
        folder: where their files are put.
    """

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self._contexts: list[BrowserContext] = []

    def __call__(self, text: str, width_px: int = SCREEN_PX, scheme: Scheme = "light") -> Shown:
        file = self._folder / "report.html"
        file.write_text(text, "utf-8")
        context = self._browser.new_context(
            viewport={"width": width_px, "height": HEIGHT_PX}, color_scheme=scheme
        )
        self._contexts.append(context)
        return Shown(context, file)

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            context.close()
