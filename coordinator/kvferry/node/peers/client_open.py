"""Which transfers a client holds open at one peer, as far as its own calls tell."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from kvferry.node.peers.wire import Abort, AnyFrame, Done, Pin, Renew

TRANSFERS_MAX = 4096
SLACK_MS = 2_000
"""Longer than a pin can outlast the answer to the call that asked for it."""


class _Open:
    __slots__ = ("ranks", "ranks_done", "until_s")

    def __init__(self, ranks: int, until_s: float) -> None:
        self.ranks = ranks
        self.ranks_done: set[int] = set()
        self.until_s = until_s


class OpenTransfers:
    """Names too many rather than too few: to list an ended transfer as live is harmless."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def before(self, frame: AnyFrame) -> None:
        """A request is about to be sent; a pin counts from here on."""
        with self._lock:
            if isinstance(frame, Pin):
                until_s = _until_s(frame.deadline_ms)
                known = self._open.setdefault(frame.transfer, _Open(frame.ranks, until_s))
                known.until_s = max(known.until_s, until_s)
                while len(self._open) > TRANSFERS_MAX:
                    self._open.popitem(last=False)
            elif isinstance(frame, Renew) and frame.transfer in self._open:
                renewed = self._open[frame.transfer]
                renewed.until_s = max(renewed.until_s, _until_s(frame.deadline_ms))

    def after(self, frame: AnyFrame) -> None:
        """The request was answered."""
        with self._lock:
            if isinstance(frame, Abort):
                self._open.pop(frame.transfer, None)
            elif isinstance(frame, Done) and frame.transfer in self._open:
                known = self._open[frame.transfer]
                known.ranks_done.add(frame.rank)
                if len(known.ranks_done) >= known.ranks:
                    del self._open[frame.transfer]

    def forget_refused(self, frame: AnyFrame) -> None:
        """The peer refused the request: what it names is not open there."""
        if isinstance(frame, Pin | Renew):
            self.forget(frame.transfer)

    def forget(self, transfer: str) -> None:
        with self._lock:
            self._open.pop(transfer, None)

    def living(self) -> tuple[str, ...]:
        """The transfers whose pins may still stand."""
        now_s = time.monotonic()
        with self._lock:
            for transfer in [t for t, known in self._open.items() if known.until_s <= now_s]:
                del self._open[transfer]
            return tuple(self._open)


def _until_s(deadline_ms: int) -> float:
    return time.monotonic() + (deadline_ms + SLACK_MS) / 1000
