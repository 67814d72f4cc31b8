"""A read under way over connections, which are cut to end it."""

from __future__ import annotations

from collections.abc import Callable

from kvferry_backends.posted import PartedRead
from kvferry_backends.tcp.stream import Stream, StreamError


class Read(PartedRead):
    """A read of which each part is one connection's; its fence is the end of the connections."""

    def __init__(
        self, transfer: str, parts: int, on_end: Callable[[Read], None], source: str = ""
    ) -> None:
        super().__init__(transfer, parts, on_end, source)
        self._live: set[Stream] = set()

    def attach(self, stream: Stream) -> None:
        """A part begins to use ``stream``.

        Raises:
            StreamError: the read is over.
        """
        with self._lock:
            if self.over:
                raise StreamError("aborted", "the read ended before this connection was used")
            self._live.add(stream)

    def detach(self, stream: Stream) -> None:
        """A part does not use ``stream`` any more; nobody will cut it for this read."""
        with self._lock:
            self._live.discard(stream)

    def _stop_parts(self) -> None:
        """Under the lock, so that no stream is hit that another read has taken since."""
        for stream in self._live:
            stream.cut()
