"""The backends of one rank and the pairs that it reads from: one choice of a backend each.

A source's host tier is a pair of its own: other memory, served by data planes of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kvferry.node.pull.choice import Choice
from kvferry.ports.backend import Backend

LINKS_MAX = 1024
"""Pairs that are remembered; the one not used for the longest time is forgotten first."""


class Links:
    """Choices by (incarnation of the source, its rank, whether of its host tier). Thread-safe.

    Attributes:
        backends: those of this rank, in order of preference.
        block_bytes: of one block over all layers of this rank; bounds what a probe reads.
    """

    def __init__(self, backends: Sequence[Backend], block_bytes: int = 1) -> None:
        self.backends = tuple(backends)
        self.block_bytes = block_bytes
        self._lock = threading.Lock()
        self._links: OrderedDict[tuple[str, int, bool], Choice] = OrderedDict()
        self._described: dict[tuple[str, int, bool], dict[str, bytes]] = {}

    @property
    def reads_host(self) -> bool:
        """Whether a source's host tier can be read from here."""
        return any("host" in backend.capabilities.memory for backend in self.backends)

    @contextmanager
    def choice(self, source: str, rank: int, *, host: bool = False) -> Iterator[Choice]:
        """The choice of a pair, to be used for a moment: all others wait meanwhile."""
        key = (source, rank, host)
        with self._lock:
            found = self._links.get(key)
            if found is None:
                found = self._links[key] = Choice()
                if len(self._links) > LINKS_MAX:
                    dropped, _ = self._links.popitem(last=False)
                    self._described.pop(dropped, None)
            self._links.move_to_end(key)
            yield found

    def met(
        self, source: str, rank: int, descriptions: Mapping[str, bytes], *, host: bool = False
    ) -> None:
        """The backends of a source's rank described themselves."""
        with self.choice(source, rank, host=host):
            self._described[source, rank, host] = dict(descriptions)

    def gone(self, source: str) -> None:
        """The source's process has ended: forget it, and let every backend forget it."""
        with self._lock:
            keys = [key for key in self._links if key[0] == source]
            for key in keys:
                del self._links[key]
            described = [self._described.pop(key, {}) for key in keys]
        for backend in self.backends:
            for descriptions in described:
                if backend.name in descriptions:
                    backend.forget(descriptions[backend.name])
