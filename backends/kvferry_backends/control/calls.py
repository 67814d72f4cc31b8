"""The target's end: conversations that it begins, over connections kept between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from kvferry_backends.control.conversation import Conversation
from kvferry_backends.control.wire import (
    MESSAGE_MAX_BYTES,
    PROTOCOL,
    Accepted,
    End,
    Opening,
    receive_frame,
    send_frame,
)
from kvferry_backends.tcp.links import Links
from kvferry_backends.tcp.options import split_address
from kvferry_backends.tcp.stream import Stream, StreamError
from kvferry_backends.tcp.wire import pack_blocks

CONNECT_S = 3.0


class Calls:
    """All conversations that one backend object begins. Thread-safe."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.links = Links()

    def begin(self, address: str, instance: str, deadline: float) -> Call:
        """A conversation with the source of this instance at ``ip:port``; nothing is sent yet."""
        return Call(self, address, instance, deadline)

    def drop(self, address: str) -> None:
        """Close the idle connections to ``address``."""
        self.links.drop(address)

    def close(self) -> None:
        """Close all idle connections. Calls under way are their callers' to cut and close."""
        self.links.close()


class Call(Conversation):
    """The target's end of one conversation. To be closed, whatever happens."""

    def __init__(self, calls: Calls, address: str, instance: str, deadline: float) -> None:
        self._calls = calls
        self._address = address
        self._instance = instance
        self._host, self._port = split_address(address)
        self._lock = threading.Lock()
        self._cut = False
        self._closed = False
        self._whole = False
        super().__init__(Stream.unconnected(self._host), deadline)

    def open(self, *, transfer: str, grant: bytes, blocks: Sequence[int], body: bytes) -> None:
        """Connect, ask, and wait until the source has accepted.

        Raises:
            StreamError: ``refused``, ``unreachable``, ``deadline``, ``aborted`` or ``error``.
            BackendError: a block is no 32-bit id, or the other end is no source of ours.
        """
        opening = Opening(
            protocol=PROTOCOL,
            backend=self._calls.backend,
            instance=self._instance,
            transfer=transfer,
            grant=grant,
            blocks=pack_blocks(tuple(blocks)),
            deadline_ms=max(1, int((self.deadline - time.monotonic()) * 1000)),
            body=body,
        )
        kept = self._calls.links.take(self._address)
        if kept is not None:
            self._use(kept)
            try:
                self._ask(opening)
                return
            except StreamError as error:
                # The source closes connections that idle too long; this one may have gone while
                # our opening was under way. Nothing came, so nothing is lost.
                if error.error != "unreachable" or error.moved:
                    raise
            self._use(Stream.unconnected(self._host))
        limit = min(self.deadline, time.monotonic() + CONNECT_S)
        self._stream.connect(self._host, self._port, limit)
        self._ask(opening)

    def finish(self) -> None:
        """Wait for the source's own end, so that the connection can serve the next conversation.

        Raises:
            StreamError: the source ended it otherwise, or is gone.
            BackendError: the source does not keep to the protocol.
        """
        frame = receive_frame(self._stream, self.deadline, MESSAGE_MAX_BYTES)
        if not isinstance(frame, End):
            raise StreamError("error", f"the source says {type(frame).__name__}, not its end")
        _raise_end(frame)
        self._whole = True

    def cut(self) -> None:
        """From any thread: make every wait of this conversation end, now and later."""
        with self._lock:
            self._cut = True
            if not self._closed:  # else the connection may serve another conversation by now
                self._stream.cut()

    def close(self) -> None:
        """Keep the connection if the conversation came to its end, else close it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            whole = self._whole and not self._cut
        if whole:
            self._calls.links.give(self._address, self._stream)
        else:
            self._stream.close()

    def _use(self, stream: Stream) -> None:
        """Go on over ``stream``."""
        with self._lock:
            self._stream.close()
            self._stream = stream
            if self._cut:
                stream.cut()

    def _ask(self, opening: Opening) -> None:
        send_frame(self._stream, opening, self.deadline)
        frame = receive_frame(self._stream, self.deadline, MESSAGE_MAX_BYTES)
        if isinstance(frame, End):
            _raise_end(frame)
        if not isinstance(frame, Accepted):
            raise StreamError("error", f"the source answers an opening with {type(frame).__name__}")


def _raise_end(end: End) -> None:
    if end.error:
        raise StreamError(end.error, end.detail, 1)
