"""The demo's own failure."""

from __future__ import annotations

from pathlib import Path

from kvferry.errors import KVFerryError


class DemoError(KVFerryError):
    """The demo cannot go on.

    Attributes:
        log: the file that says more, if there is one.
    """

    def __init__(self, text: str, log: Path | None = None) -> None:
        super().__init__(text)
        self.log = log
