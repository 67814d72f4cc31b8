"""How much a source serves at one time; what goes beyond is refused, not queued."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = "busy"
"""How the text of a refusal begins that says "not now" rather than "no"."""


class TooBusy(Exception):
    """One more transfer would be too many. The text is short and begins with :data:`BUSY`."""


class Admission:
    """Bounds on the transfers that are served at a time, and on their bytes together.

    A transfer comes as parts over several connections. Once one is admitted so are the others:
    half a transfer is of no use to anybody.
    """

    def __init__(self, transfers_max: int, bytes_max: int) -> None:
        self._transfers_max = transfers_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._parts: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    @contextmanager
    def admit(self, transfer: str, size: int) -> Iterator[None]:
        """Serve a part of a transfer that has ``size`` bytes in all.

        A transfer larger than the bound is served when it is the only one.

        Raises:
            TooBusy: it does not fit now.
        """
        with self._lock:
            if transfer not in self._parts:
                self._check(size)
                self._sizes[transfer] = size
            self._parts[transfer] = self._parts.get(transfer, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._parts[transfer] -= 1
                if not self._parts[transfer]:
                    del self._parts[transfer], self._sizes[transfer]

    def _check(self, size: int) -> None:
        if len(self._parts) >= self._transfers_max:
            raise TooBusy(f"{BUSY}: {len(self._parts)} transfers are being served")
        serving = sum(self._sizes.values())
        if serving and serving + size > self._bytes_max:
            raise TooBusy(f"{BUSY}: {serving >> 20} MiB are being served")
