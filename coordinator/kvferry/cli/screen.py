"""The whole terminal as a screen that is drawn again and again, and given back at the end."""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live

REMARKS_MAX = 1


class _Remarks(logging.Handler):
    """Keeps the last warnings: on stderr they would tear the screen."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last: deque[str] = deque(maxlen=REMARKS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        self.last.append(f"{record.levelname.lower()}: {record.getMessage()}")


class Screen:
    """Use as a context manager; stdout must be a terminal."""

    def __init__(self) -> None:
        self._live = Live(console=Console(highlight=False), screen=True, auto_refresh=False)
        self._remarks = _Remarks()
        self._handlers: list[logging.Handler] = []

    def __enter__(self) -> Screen:
        root = logging.getLogger()
        self._handlers, root.handlers = root.handlers, [self._remarks]
        try:
            self._live.start()
        except BaseException:
            root.handlers = self._handlers
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._live.stop()
        finally:
            logging.getLogger().handlers = self._handlers

    @property
    def remark(self) -> str:
        """The last warning that was logged; empty without one."""
        return self._remarks.last[-1] if self._remarks.last else ""

    def show(self, what: RenderableType) -> None:
        """Draw instead of what was there."""
        self._live.update(what, refresh=True)
