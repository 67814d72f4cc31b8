"""Ids that the ledger knows, to suggest near ones for one that it does not."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable

KNOWN_MAX = 20_000
"""Ids of each kind that are remembered, the latest ones."""
NEAR_MAX = 5
ALIKE = 0.5
"""The least likeness (0 to 1) of an id that is suggested as near."""


class Known:
    """Request, session and transfer ids in the order in which the ledger names them."""

    def __init__(self) -> None:
        self.requests: deque[str] = deque(maxlen=KNOWN_MAX)
        self.sessions: deque[str] = deque(maxlen=KNOWN_MAX)
        self.transfers: deque[str] = deque(maxlen=KNOWN_MAX)

    def near(self, asked: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """(requests, sessions, transfers) like the one asked for.

        The latest of every kind where none of any kind is like it.
        """
        known = [list(dict.fromkeys(one)) for one in (self.requests, self.sessions, self.transfers)]
        like = [_alike(asked, ids) for ids in known]
        if not any(like):
            like = [list(reversed(ids[-NEAR_MAX:])) for ids in known]
        requests, sessions, transfers = (tuple(one) for one in like)
        return requests, sessions, transfers


def _alike(asked: str, ids: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(asked, list(ids), n=NEAR_MAX, cutoff=ALIKE)
