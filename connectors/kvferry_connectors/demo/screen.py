"""What the demo shows while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


class Screen:
    """Progress on a terminal, or plain lines where there is none."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(
            f"[dim]{self.seconds:5.0f} s[/dim]  {text}", highlight=False, soft_wrap=True
        )

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """A line that moves while the work lasts."""
        if self.console.is_terminal:
            with self.console.status(text):
                yield
        else:
            self.say(f"{text} ...")
            yield
