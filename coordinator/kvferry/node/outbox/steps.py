"""Turning what an engine step handed over into events, without ever failing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kvferry.core.events import Event

logger = logging.getLogger("kvferry.node")

Translate = Callable[[object], Iterable[tuple[str, Event, str]]]
"""Turns what ``Outbox.hand_over`` got into (lane, event, cause), on the agent's thread."""


class StepTranslator:
    """Runs the engine connector's ``translate``; its errors become gaps and one log entry."""

    def __init__(self, translate: Translate | None) -> None:
        self._translate = translate
        self._told = False

    def events(self, item: object) -> list[tuple[str, Event, str]] | None:
        """The step's events, or None when it cannot be translated."""
        if self._translate is None:
            self._tell("the outbox has no translate function; pass translate= to Outbox")
            return None
        try:
            return list(self._translate(item))
        except Exception:
            # Whatever a translator does, the agent's thread must live on.
            self._tell("a handed-over step cannot be translated", with_traceback=True)
            return None

    def _tell(self, what: str, *, with_traceback: bool = False) -> None:
        if not self._told:
            self._told = True
            logger.error("%s; such steps count as gaps", what, exc_info=with_traceback)
