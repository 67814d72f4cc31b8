"""The reads that a backend has under way: how many there may be, and their common end."""

from __future__ import annotations

import logging
import threading

from kvferry.errors import BackendError
from kvferry_backends.posted import PartedRead


class OpenReads:
    """Thread-safe. A read is taken out by its own end: :meth:`drop` is its ``on_end``.

    Args:
        backend: its name.
        most: reads under way at one time.
        cure: what to do about more of them.
    """

    def __init__(
        self, backend: str, most: int, cure: str = "wait for one before posting another"
    ) -> None:
        self._backend = backend
        self._most = most
        self._cure = cure
        self._log = logging.getLogger(f"kvferry.backends.{backend}")
        self._lock = threading.Lock()
        self._closed = False
        self._reads: set[PartedRead] = set()

    def check_open(self) -> None:
        """
        Raises:
            BackendError: the backend is closed.
        """
        if self._closed:
            raise BackendError(f"this {self._backend} backend is closed")

    def add(self, read: PartedRead) -> None:
        """A read begins.

        Raises:
            BackendError: the backend is closed, or as many are under way as there may be.
        """
        with self._lock:
            self.check_open()
            if len(self._reads) >= self._most:
                raise BackendError(f"{self._most} reads are under way; {self._cure}")
            self._reads.add(read)

    def drop(self, read: PartedRead) -> None:
        """A read has ended."""
        with self._lock:
            self._reads.discard(read)

    def lost(self, source: str, detail: str) -> None:
        """The process behind ``source`` has ended: so do the reads from it."""
        with self._lock:
            reads = [read for read in self._reads if read.source == source]
        for read in reads:
            read.fail("unreachable", detail)

    def close(self) -> None:
        """No read begins any more. :meth:`abort_all` ends those under way."""
        with self._lock:
            self._closed = True

    def abort_all(self) -> bool:
        """Abort every read; False where a fence did not hold, which is logged."""
        with self._lock:
            reads = set(self._reads)
        fenced = True
        for read in reads:
            try:
                read.abort()
            except BackendError as error:
                fenced = False
                self._log.error("%s", error)
        return fenced
