"""How much one call should move.

Where blocks are compared they go chunk by chunk, so that both ends take digests at the same time.
But after each call a thread needs the GIL, and beside a busy engine thread it waits 5 ms for that:
then many chunks have to share a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

SLOW_CALL_S = 0.003
"""A call for one chunk that took longer waited for the GIL, or for a network that is slower than
digests are: then it does no harm that calls are large."""


class Pace:
    """What earlier transfers of a backend taught. Racy on purpose: a wrong guess costs little."""

    def __init__(self) -> None:
        self.dear = False
        """Whether calls were dear lately."""


class Calls:
    """Cuts the chunks of one transfer into calls.

    ``per_dear_call`` chunks share a call as soon as one was slow, or from the start where
    ``pace`` knows it.
    """

    def __init__(self, per_dear_call: int, pace: Pace | None = None) -> None:
        self._per_dear_call = per_dear_call
        self._pace = pace
        self._slow = False
        self._dear = pace is not None and pace.dear

    def run(
        self, ranges: list[tuple[int, int]], move: Callable[[list[tuple[int, int]]], None]
    ) -> None:
        """Call ``move`` with a few of ``ranges`` at a time until all are through."""
        at = 0
        while at < len(ranges):
            count = self._per_dear_call if self._slow or self._dear else 1
            some = ranges[at : at + count]
            if count == 1:
                self.timed(partial(move, some))
            else:
                move(some)
            at += count
        if self._pace is not None:
            self._pace.dear = self._slow

    def timed(self, call: Callable[[], None]) -> None:
        """Make a call that is quick unless the GIL is hard to get."""
        began = time.monotonic()
        call()
        self._slow = self._slow or time.monotonic() - began > SLOW_CALL_S
