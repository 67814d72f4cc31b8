"""What a server forbids its user: told only in passing, so it must be listened for."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger("kvferry.ledger")

LOGGED_MAX = 1000

Refusal = Callable[[str, str], None]
"""Called with what was forbidden (``publish`` or ``subscription``) and the lower-case subject."""


class Refusals:
    """Hands permission violations to whoever sent something, and logs each once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._calls: dict[Refusal, None] = {}
        self._logged: set[tuple[str, str]] = set()

    def watch(self, call: Refusal) -> Callable[[], None]:
        """Call this for each violation; returns how to stop."""
        self._calls[call] = None

        def forget() -> None:
            self._calls.pop(call, None)

        return forget

    def heard(self, kind: str, subject: str) -> None:
        """The server forbade something."""
        if (kind, subject) not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add((kind, subject))
            _log.error(
                "the ledger at %s forbids %s to %s: correct this user's permissions",
                self._url,
                kind,
                subject,
            )
        for call in list(self._calls):
            call(kind, subject)
