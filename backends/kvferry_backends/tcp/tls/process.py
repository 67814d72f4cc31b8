"""The engine's side of the gate: its process, the door that it is, and streams through it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

import kvferry
import kvferry_backends
from kvferry.errors import BackendUnavailable
from kvferry_backends.tcp.door import DoorClosed, cannot_listen
from kvferry_backends.tcp.stream import Stream, StreamError
from kvferry_backends.tcp.tls.control import (
    STATUS_BYTES,
    Accepted,
    Dial,
    Failed,
    Listening,
    TurnedAway,
    decode_status,
    receive_from_gate,
    send,
)
from kvferry_backends.tcp.tls.files import TlsFiles
from kvferry_backends.tcp.tls.gate import GateConfig

START_S = 30.0
END_S = 5.0
SPARE_PLACES = 32
"""Connections beyond those that are served: in their handshake, or about to hear of it."""
GONE = "the TLS process of this engine's tcp backend has ended; restart the engine"

_log = logging.getLogger("kvferry.backends.tcp")


class TlsGate:
    """Implements :class:`kvferry_backends.tcp.door.Door`; also makes connections."""

    def __init__(self, host: str, port: int, files: TlsFiles, connections_max: int) -> None:
        """Start the process and wait until it listens.

        Raises:
            BackendUnavailable: it does not start, or the address cannot be had.
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = GateConfig(theirs.fileno(), host, port, connections_max + SPARE_PLACES, files)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", GateConfig.__module__, msgspec.json.encode(config).decode()],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        try:
            self.port: int = self._wait_for_port(host, port)
        except BaseException:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, str]:
        while True:
            try:
                message, passed = receive_from_gate(self._control)
            except EOFError:
                raise DoorClosed(GONE) from None
            if isinstance(message, Accepted) and passed is not None:
                return passed, message.peer
            if isinstance(message, TurnedAway):
                _log.warning("%s turned away: %s", message.peer, message.detail)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # closed before
            self._control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.wake()
        self._control.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            _log.warning("the TLS process did not end within %s s and is killed", END_S)
            self._process.kill()
            self._process.wait(END_S)

    def stream(self, host: str) -> Stream:
        """A stream that still has to connect."""
        return _GateStream(self._control)

    def _wait_for_port(self, host: str, port: int) -> int:
        self._control.settimeout(START_S)
        try:
            message, _ = receive_from_gate(self._control)
        except (EOFError, OSError) as error:
            raise BackendUnavailable(
                f"the TLS process of the tcp backend did not start within {START_S} s ({error}); "
                "its own words are in the engine's standard error"
            ) from error
        self._control.settimeout(None)
        if isinstance(message, Failed):
            raise cannot_listen("tcp", host, port, message.detail)
        assert isinstance(message, Listening)
        return message.port


class _GateStream(Stream):
    """A connection whose far part, from the gate on, is TLS."""

    def __init__(self, control: socket.socket) -> None:
        ours, self._gates = socket.socketpair()
        super().__init__(ours)
        self._control = control

    def connect(self, host: str, port: int, deadline: float) -> None:
        timeout_ms = max(1, int((deadline - time.monotonic()) * 1000))
        try:
            with self._gates:
                order = Dial(host, port, timeout_ms)
                send(self._control, order, self._gates, socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            raise StreamError("error", "the TLS process does not keep up") from error
        except OSError as error:
            raise StreamError("error", GONE) from error
        status = bytearray(STATUS_BYTES)
        try:
            self.receive([memoryview(status)], deadline)
        except StreamError as error:
            if error.error == "unreachable":
                raise StreamError("error", GONE) from error
            raise
        word, failure = decode_status(status)
        if word:
            raise StreamError(word, f"{host}:{port}: {failure}")

    def close(self) -> None:
        self._gates.close()
        super().close()


def _python_path() -> str:
    """Where the gate finds these packages, however this process found them."""
    roots = [str(Path(package.__path__[0]).parent) for package in (kvferry, kvferry_backends)]
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*dict.fromkeys(roots), *([inherited] if inherited else [])])
