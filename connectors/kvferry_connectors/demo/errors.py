"""The demo's own failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from kvferry.errors import KVFerryError


class DemoError(KVFerryError):
    """The demo cannot go on.

    Attributes:
        log: the file that says more, if there is one.
    """

    def __init__(self, text: str, log: Path | None = None) -> None:
        super().__init__(text)
        self.log = log


class Found(Protocol):
    """What a demo found."""

    def problems(self) -> list[str]:
        """Why it did not show what it must, in words; empty when it did."""
        ...

    def document(self) -> dict[str, Any]:
        """For ``--json``; keys are stable."""
        ...


class DemoFound(DemoError):
    """Everything ran, and something was not as it must be."""

    def __init__(self, figures: Found, logs: Path) -> None:
        super().__init__("not everything was as it must be", logs)
        self.figures = figures
