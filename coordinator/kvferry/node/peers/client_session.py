"""One session to one peer, shared by threads: requests go out in a row, answers come in order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from kvferry.errors import CodecError, PeerError, PeerUnreachable
from kvferry.node.peers.frames import FrameSocket
from kvferry.node.peers.wire import AnyFrame, Challenge

log = logging.getLogger("kvferry.peer_client")

WAITING_MAX = 1024
STALLED_S = 2.0
"""A session whose oldest request waits longer than this when a caller gives up is broken."""
READ_WAKE_S = 60.0
JOIN_S = 10.0


class SessionBroken(PeerUnreachable):
    """The session is of no further use; whether the peer saw the request is not known."""


class CallTimeout(PeerUnreachable):
    """No answer in the caller's time."""


class _Waiter:
    """A request that waits for its answer."""

    __slots__ = ("answer", "done", "since_s")

    def __init__(self) -> None:
        self.answer: AnyFrame | None = None
        self.done = threading.Event()
        self.since_s = time.monotonic()


class ClientSession:
    """Sends requests of many threads over one connection without waiting for one another.

    The peer answers in order, so the oldest waiter owns the next answer. A caller that gives up
    leaves its place in the row; only when the row has stalled the session breaks.
    """

    def __init__(self, stream: FrameSocket, peer: Challenge, on_answer: Callable[[], None]) -> None:
        """``on_answer`` is called at each answer, be it late or not."""
        self.peer = peer
        self._on_answer = on_answer
        self._stream = stream
        self._sending = threading.Lock()
        self._row_lock = threading.Lock()
        self._row: deque[_Waiter] = deque()
        self._broken = ""
        self._reader = threading.Thread(
            target=self._read_all, name=f"kvferry-peer-{peer.node}", daemon=True
        )
        self._reader.start()

    @property
    def alive(self) -> bool:
        return not self._broken

    def request(self, frame: AnyFrame, deadline_s: float) -> AnyFrame:
        """Send a request and wait for its answer until ``deadline_s`` of the monotonic clock.

        Raises:
            CallTimeout: no answer in time.
            SessionBroken: the connection ended; the request may be repeated on another one.
            CodecError: the frame is too long.
        """
        waiter = _Waiter()
        if not self._sending.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            raise CallTimeout(f"{self.peer.node}: other requests take all the time to send")
        try:
            self._enter(waiter)
            self._send(frame, waiter, deadline_s)
        finally:
            self._sending.release()
        if not waiter.done.wait(max(0.0, deadline_s - time.monotonic())):
            self._give_up()
            raise CallTimeout(f"{self.peer.node} does not answer")
        if waiter.answer is None:
            raise SessionBroken(f"{self.peer.node}: {self._broken}")
        return waiter.answer

    def close(self) -> None:
        """End the session and join its thread; waiting callers get :class:`SessionBroken`."""
        self._break("closed by us")
        if threading.current_thread() is not self._reader:
            self._reader.join(JOIN_S)

    def _enter(self, waiter: _Waiter) -> None:
        with self._row_lock:
            if self._broken:
                raise SessionBroken(f"{self.peer.node}: {self._broken}")
            if len(self._row) >= WAITING_MAX:
                raise CallTimeout(f"{self.peer.node}: {WAITING_MAX} requests wait already")
            self._row.append(waiter)

    def _send(self, frame: AnyFrame, waiter: _Waiter, deadline_s: float) -> None:
        try:
            self._stream.send(frame, timeout_s=deadline_s - time.monotonic())
        except PeerError as error:
            self._break(str(error))
            raise SessionBroken(f"{self.peer.node}: {error}") from error
        except CodecError:
            # Nothing went out, so nothing will come for this place in the row.
            with self._row_lock:
                self._row.remove(waiter)
            raise

    def _give_up(self) -> None:
        with self._row_lock:
            stalled = bool(self._row) and time.monotonic() - self._row[0].since_s >= STALLED_S
        if stalled:
            self._break(f"no answer for {STALLED_S} s")

    def _break(self, why: str) -> None:
        with self._row_lock:
            self._broken = self._broken or why
            row, self._row = self._row, deque()
        self._stream.stop()
        for waiter in row:
            waiter.done.set()

    def _read_all(self) -> None:
        why = "closed"
        try:
            while self.alive:
                frame = self._stream.receive(timeout_s=READ_WAKE_S)
                if frame is not None:
                    self._hand_over(frame)
        except (PeerError, CodecError) as error:
            why = str(error)
        finally:
            self._break(why)
            # A sender still inside the socket fails at once; the descriptor must outlive it.
            with self._sending:
                self._stream.close()
            log.debug("the session to %s ended: %s", self.peer.node, self._broken)

    def _hand_over(self, frame: AnyFrame) -> None:
        with self._row_lock:
            waiter = self._row.popleft() if self._row else None
        if waiter is None:
            raise CodecError("an answer that nobody asked for")
        self._on_answer()
        waiter.answer = frame
        waiter.done.set()
