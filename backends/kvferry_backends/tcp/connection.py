"""One target's connection at the source: request after request until it leaves or errs."""

from __future__ import annotations

import logging
import time

from kvferry.errors import BackendError
from kvferry_backends.tcp.serving import Refusal, Server
from kvferry_backends.tcp.stream import Stream, StreamError
from kvferry_backends.tcp.wire import (
    MAGIC,
    PREFIX,
    REQUEST_OVERHEAD_BYTES,
    ReadPart,
    decode_part,
)

FIRST_REQUEST_S = 5.0
"""A connection that has not yet shown a valid grant is dropped after this time."""
IDLE_S = 300.0

_log = logging.getLogger("kvferry.backends.tcp")


class TcpConnection:
    """Implements :class:`kvferry_backends.tcp.listener.Connection` over one accepted stream."""

    def __init__(self, server: Server, stream: Stream, peer: str) -> None:
        self._server = server
        self.stream = stream
        self.peer = peer
        self.idle_since = time.monotonic()
        """When it began to wait for a request; 0 while one is served or it is being dropped."""
        self.trusted = False
        """Whether it has shown a valid grant."""
        self._request_max_bytes = REQUEST_OVERHEAD_BYTES + 4 * server.pool.blocks

    def run(self) -> None:
        transfer = "-"
        try:
            while True:
                patience_s = IDLE_S if self.trusted else FIRST_REQUEST_S
                part = self._next(time.monotonic() + patience_s)
                if part is None:
                    return
                transfer = part.transfer
                self.idle_since = 0.0
                self._server.answer(part, self.stream)
                self.trusted = True
                self.idle_since = time.monotonic()
        except Refusal as refused:
            _log.warning("transfer %s of %s refused: %s", transfer, self.peer, refused)
        except StreamError as error:
            _log.info("connection of %s ended (%s): %s", self.peer, error.error, error)
        except BackendError as error:
            _log.info("%s dropped: %s", self.peer, error)
        except Exception:
            _log.exception(
                "transfer %s of %s failed; its connection is closed", transfer, self.peer
            )

    def _next(self, deadline: float) -> ReadPart | None:
        """The next request, or None when the target closed the connection between two."""
        buffer = bytearray(REQUEST_OVERHEAD_BYTES)
        filled = 0
        needed = PREFIX.size
        while filled < needed:
            if needed > len(buffer):
                buffer.extend(bytes(needed - len(buffer)))
            with memoryview(buffer) as view:
                count = self.stream.receive_some(view[filled:], deadline)
            if count == 0:
                if filled:
                    raise BackendError(f"it left after {filled} bytes of a request")
                return None
            filled += count
            if needed == PREFIX.size and filled >= PREFIX.size:
                magic, length = PREFIX.unpack_from(buffer)
                if magic != MAGIC or length > self._request_max_bytes:
                    raise BackendError(f"not a request: {bytes(buffer[:8])!r}")
                needed += length
        if filled > needed:
            raise BackendError(f"{filled - needed} bytes follow its request unasked")
        return decode_part(memoryview(buffer)[PREFIX.size : needed])
