"""The source's end: who may begin a conversation, and its thread."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvferry.errors import BackendError
from kvferry.ports.backend import Authorize
from kvferry_backends.control.conversation import Conversation
from kvferry_backends.control.wire import (
    OPENING_OVERHEAD_BYTES,
    PROTOCOL,
    Accepted,
    End,
    Opening,
    receive_frame,
    send_frame,
)
from kvferry_backends.tcp.listener import Listener
from kvferry_backends.tcp.serving import Refusal
from kvferry_backends.tcp.stream import Stream, StreamError
from kvferry_backends.tcp.wire import unpack_blocks

FIRST_OPENING_S = 5.0
"""A connection that has not yet shown a valid grant is dropped after this time."""
IDLE_S = 300.0
LAST_WORD_S = 1.0
"""Given to the sending of a conversation's end, whose own deadline may have passed, and to the
target for leaving after a bad one."""

_log = logging.getLogger("kvferry.backends")


@dataclass(frozen=True)
class Asked:
    """A conversation that a target has begun with a valid grant."""

    transfer: str
    blocks: tuple[int, ...]
    """Within the source's pool; the grant is for exactly these, in this order."""
    body: bytes
    """What the target's backend said in its opening."""
    talk: Conversation
    permit: Callable[[], None]
    """Asks again whether the blocks may be sent now.

    Raises:
        Refusal: no, not any more.
    """


Serve = Callable[[Asked], None]
"""Runs on the connection's thread; touches nothing of the transfer after it returned or raised."""


class ControlServer:
    """Listens for targets of one backend."""

    def __init__(
        self,
        backend: str,
        instance: str,
        authorize: Authorize,
        blocks: int,
        serve: Serve,
        *,
        host: str,
        port: int = 0,
        timeout_s: float = 30.0,
    ) -> None:
        """Listen at once on ``host:port``, 0 being any free port.

        Args:
            blocks: size of the registered pool.
            timeout_s: longest that one conversation lasts, whatever its target asks for.

        Raises:
            BackendUnavailable: the address cannot be had.
        """
        self.backend = backend
        self._instance = instance
        self._authorize = authorize
        self._blocks = blocks
        self._serve = serve
        self._timeout_s = timeout_s
        self._listener = Listener(
            backend, host, port, lambda stream, peer: _ControlConnection(self, stream, peer)
        )
        self.port = self._listener.port
        self.opening_max_bytes = OPENING_OVERHEAD_BYTES + 4 * blocks

    def close(self) -> None:
        """Cut every conversation and join every thread. May be called twice."""
        self._listener.close()

    def answer(self, opening: Opening, stream: Stream) -> None:
        """Hold one conversation, all but its end.

        Raises:
            Refusal: the opening is not one for us, or the grant does not permit its blocks.
            BackendError: it failed.
        """
        deadline = time.monotonic() + min(opening.deadline_ms / 1000, self._timeout_s)
        blocks = self._checked(opening)
        send_frame(stream, Accepted(), deadline)
        talk = Conversation(stream, deadline)
        self._serve(
            Asked(opening.transfer, blocks, opening.body, talk, lambda: self._permit(opening))
        )

    def _checked(self, opening: Opening) -> tuple[int, ...]:
        if opening.protocol != PROTOCOL:
            raise Refusal(f"protocol {opening.protocol}, not {PROTOCOL}")
        if opening.backend != self.backend:
            raise Refusal(f"this is {self.backend}, not {opening.backend[:20]}")
        if opening.instance != self._instance:
            raise Refusal("another process serves this address now")
        self._permit(opening)
        try:
            blocks = unpack_blocks(opening.blocks)
        except BackendError as error:
            raise Refusal("malformed block list") from error
        if not blocks or max(blocks) >= self._blocks:
            raise Refusal(f"{len(blocks)} blocks, not all of a pool of {self._blocks}")
        return blocks

    def _permit(self, opening: Opening) -> None:
        try:
            permitted = self._authorize(opening.transfer, opening.grant, opening.blocks)
        except Exception:
            _log.exception("transfer %s: the check of its grant failed; refused", opening.transfer)
            permitted = False
        if not permitted:
            raise Refusal("the grant does not permit these blocks now")


class _ControlConnection:
    """Implements :class:`kvferry_backends.tcp.listener.Connection`."""

    def __init__(self, server: ControlServer, stream: Stream, peer: str) -> None:
        self._server = server
        self._name = f"{server.backend} conversation with {peer}"
        self.stream = stream
        self.idle_since = time.monotonic()
        self.trusted = False

    def run(self) -> None:
        try:
            while self._one():
                self.trusted = True
                self.idle_since = time.monotonic()
        except StreamError as error:
            _log.info("%s ended (%s): %s", self._name, error.error, error)
        except BackendError as error:
            _log.info("%s dropped: %s", self._name, error)
        except Exception:
            _log.exception("%s failed; its connection is closed", self._name)

    def _one(self) -> bool:
        """Hold one conversation; False where no other can follow on this connection."""
        opening = self._next()
        if opening is None:
            return False
        self.idle_since = 0.0
        end = End()
        try:
            self._server.answer(opening, self.stream)
        except Refusal as refused:
            _log.warning("%s: transfer %s refused: %s", self._name, opening.transfer, refused)
            end = End("refused", str(refused))
        except StreamError:
            raise
        except BackendError as error:
            _log.warning("%s: transfer %s failed: %s", self._name, opening.transfer, error)
            end = End("error", str(error))
        except Exception as error:
            _log.exception("%s: transfer %s failed", self._name, opening.transfer)
            end = End("error", f"the source failed: {type(error).__name__}")
        send_frame(self.stream, end, time.monotonic() + LAST_WORD_S)
        if end.error:
            self.stream.finish()
            self._drain()
        return not end.error

    def _drain(self) -> None:
        """Take what the target still says, since a connection closed upon it would be reset.

        The target could then find its own words refused before it has read why.
        """
        until = time.monotonic() + LAST_WORD_S
        with memoryview(bytearray(4096)) as scratch, contextlib.suppress(StreamError):
            while self.stream.receive_some(scratch, until):
                continue

    def _next(self) -> Opening | None:
        """The next opening, or None when the target left between two."""
        patience_s = IDLE_S if self.trusted else FIRST_OPENING_S
        limit = self._server.opening_max_bytes
        try:
            frame = receive_frame(self.stream, time.monotonic() + patience_s, limit)
        except StreamError as error:
            if error.error == "unreachable" and not error.moved:
                return None
            raise
        if not isinstance(frame, Opening):
            raise BackendError(f"{type(frame).__name__} where an opening should be")
        return frame
