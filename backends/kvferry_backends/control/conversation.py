"""One end of a conversation."""

from __future__ import annotations

import time

from kvferry.errors import BackendError
from kvferry_backends.control.wire import (
    MESSAGE_MAX_BYTES,
    End,
    Message,
    receive_frame,
    send_frame,
)
from kvferry_backends.tcp.stream import Stream, StreamError


class Conversation:
    """Messages over a stream until the conversation's deadline."""

    def __init__(self, stream: Stream, deadline: float) -> None:
        self._stream = stream
        self.deadline = deadline

    def send(self, body: bytes) -> None:
        """Say something.

        Raises:
            StreamError: ``unreachable``, ``deadline`` or ``aborted``.
            BackendError: it is longer than a message may be.
        """
        if len(body) > MESSAGE_MAX_BYTES - 64:
            raise BackendError(f"{len(body)} bytes are too long for a message")
        send_frame(self._stream, Message(body), self.deadline)

    def receive(self) -> bytes:
        """The next message of the other end.

        Raises:
            StreamError: ``unreachable``, ``deadline`` or ``aborted``; at the target also
                ``refused`` or ``error`` when the source has ended the conversation so.
            BackendError: the other end does not keep to the protocol.
        """
        frame = receive_frame(self._stream, self.deadline, MESSAGE_MAX_BYTES)
        if isinstance(frame, Message):
            return frame.body
        if isinstance(frame, End):
            raise StreamError(frame.error or "error", frame.detail or "it ended too soon")
        raise BackendError(f"the other end says {type(frame).__name__} in mid-conversation")

    def heard(self, within_s: float = 0.0) -> bool:
        """Whether :meth:`receive` has something to return or to raise, if need be after a while.

        For whoever has other things to look after meanwhile; ``within_s`` is slept through.
        """
        if self._stream.readable():
            return True
        if within_s <= 0:
            return False
        time.sleep(within_s)
        return self._stream.readable()

    def stands(self) -> bool:
        """Whether the other end has not closed the connection, as far as we know."""
        return self._stream.established()

    def cut(self) -> None:
        """From any thread: make every wait of this conversation end, now and later."""
        self._stream.cut()
