"""How workers tell the scheduler's process what became of sends.

vLLM carries what workers say once a step, and behind the step's replies; an idle engine has no
steps. But a reply should say what is known by then, and staging memory is free when a send ends,
not a step later. So outcomes go over a local datagram socket whose path is told with the orders. It
lies in a folder that only this user can enter. Workers on another host cannot reach it: their
requests' replies say ``sending``.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvferry_connectors.tilert.outcomes import RankOutcome

MESSAGE_MAX_BYTES = 8192
DETAIL_MAX_CHARS = 1000
TELL_TIMEOUT_S = 2.0
"""How long the scheduler's process may take to make room for one message."""
QUEUE_MAX = 1024

log = logging.getLogger("kvferry.tilert")
_decoder = msgspec.msgpack.Decoder(RankOutcome)
_encoder = msgspec.msgpack.Encoder()


class Inbox:
    """The scheduler's end. ``heard`` is called on a thread of its own."""

    def __init__(self, heard: Callable[[RankOutcome], None]) -> None:
        self._heard = heard
        self._folder = tempfile.mkdtemp(prefix="kvferry-tilert-")
        self.path = str(Path(self._folder) / "outcomes")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._thread = threading.Thread(target=self._run, name="kvferry-tilert-inbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hear nothing more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread.
        self._thread.join(TELL_TIMEOUT_S)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        while True:
            try:
                message = self._socket.recv(MESSAGE_MAX_BYTES)
            except OSError:
                return
            if not message:
                return
            try:
                self._heard(_decoder.decode(message))
            except msgspec.DecodeError as error:
                log.warning("tilert: an outcome cannot be read: %s", error)


class Reporter:
    """A worker's end. Telling never waits; a thread of its own sends."""

    def __init__(self) -> None:
        self.to = ""
        """Where the scheduler listens, as the orders say."""
        self._queue: queue.Queue[RankOutcome | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def tell(self, outcome: RankOutcome) -> None:
        """Say how a send ended."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kvferry-tilert-reports", daemon=True
                )
                self._thread.start()
        try:
            self._queue.put_nowait(outcome)
        except queue.Full:
            log.warning("tilert: the outcome of %s is not told: too many wait", outcome.request)

    def close(self) -> None:
        """Send what is left, then stop."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=TELL_TIMEOUT_S)
            self._thread.join(2 * TELL_TIMEOUT_S)

    def _run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(TELL_TIMEOUT_S)
            while (outcome := self._queue.get()) is not None:
                short = msgspec.structs.replace(outcome, detail=outcome.detail[:DETAIL_MAX_CHARS])
                try:
                    sender.sendto(_encoder.encode(short), self.to)
                except OSError as error:
                    log.warning("tilert: the outcome of %s is not told: %s", short.request, error)
