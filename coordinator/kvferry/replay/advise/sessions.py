"""Which turn of which session a recorded request is."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from kvferry.replay.advise.prompts import Prompt
from kvferry.replay.trace import Ends

SESSIONS_MAX = 200_000
"""Sessions whose next turn is waited for; the longest silent ones are given up first."""


class Place(NamedTuple):
    """Where in its session a request stands."""

    number: int
    gap_s: float | None
    """Since the session's request before; None for its first."""
    covers: int
    """Tokens of the prompt that the request before left behind, its answer included, as far as
    the record tells; else 0."""


class _Turn(msgspec.Struct, frozen=True):
    number: int
    at_s: float
    end: int | None


class Sessions:
    """Recognises sessions by their names, and where there are none by their prompts.

    Attributes:
        count: sessions seen.
    """

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._max = sessions_max
        self._named: OrderedDict[str, _Turn] = OrderedDict()
        self._ends: Ends[_Turn] = Ends(sessions_max)
        self.count = 0

    def next(self, prompt: Prompt) -> Place:
        """Place the next request."""
        if prompt.session:
            before = self._named.pop(prompt.session, None)
        else:
            before = self._ends.longest(prompt.marks)
        number = before.number + 1 if before is not None else 1
        self.count += before is None
        turn = _Turn(number, prompt.at_s, prompt.end)
        if prompt.session:
            self._named[prompt.session] = turn
            if len(self._named) > self._max:
                self._named.popitem(last=False)
        elif prompt.end is not None:
            self._ends.keep(prompt.end, turn)
        if before is None:
            return Place(number, None, 0)
        return Place(number, prompt.at_s - before.at_s, _covers(prompt, before.end))


def _covers(prompt: Prompt, end: int | None) -> int:
    """What the earlier turn left of this prompt; nothing if its text does not go on here."""
    if end is None or not prompt.covers or end not in prompt.marks:
        return 0
    return prompt.covers[prompt.marks.index(end)]
