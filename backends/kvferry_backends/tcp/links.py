"""The target's connections, kept open between reads."""

from __future__ import annotations

import threading
from collections import OrderedDict

from kvferry_backends.tcp.stream import Stream

IDLE_PER_PEER_MAX = 8
IDLE_MAX = 64


class Links:
    """Idle connections by peer address, the one used last first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: OrderedDict[str, list[Stream]] = OrderedDict()
        self._closed = False

    def take(self, address: str) -> Stream | None:
        """An idle connection that still stands, or None: connect a new one."""
        while True:
            with self._lock:
                streams = self._idle.get(address)
                if not streams:
                    return None
                stream = streams.pop()
                if not streams:
                    del self._idle[address]
            if stream.established():
                return stream
            stream.close()

    def give(self, address: str, stream: Stream) -> None:
        """Keep ``stream`` for the next read; closes the one unused for longest if full."""
        surplus: Stream | None = None
        with self._lock:
            if self._closed:
                surplus = stream
            else:
                streams = self._idle.setdefault(address, [])
                self._idle.move_to_end(address)
                streams.append(stream)
                if len(streams) > IDLE_PER_PEER_MAX:
                    surplus = streams.pop(0)
                elif sum(map(len, self._idle.values())) > IDLE_MAX:
                    oldest, others = next(iter(self._idle.items()))
                    surplus = others.pop(0)
                    if not others:
                        del self._idle[oldest]
        if surplus is not None:
            surplus.close()

    def drop(self, address: str) -> None:
        """Close the idle connections to ``address``."""
        with self._lock:
            streams = self._idle.pop(address, [])
        for stream in streams:
            stream.close()

    def close(self) -> None:
        """Close all idle connections, and from now on each one that is given."""
        with self._lock:
            self._closed = True
            streams = [stream for idle in self._idle.values() for stream in idle]
            self._idle.clear()
        for stream in streams:
            stream.close()
