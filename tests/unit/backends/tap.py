"""A relay between a target and a source that remembers what the source sent."""

from __future__ import annotations

import socket
import threading

from tests.unit.backends.support import WAIT_S


class Tap:
    """Carries one connection at ``address`` to ``upstream``, a port of this host."""

    def __init__(self) -> None:
        self.upstream = 0
        self.seen = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Tap:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self._listening.close()

    def _serve(self) -> None:
        try:
            target, _ = self._listening.accept()
        except OSError:
            return
        source = socket.create_connection(("127.0.0.1", self.upstream), timeout=WAIT_S)
        with target, source:
            back = threading.Thread(target=self._carry_back, args=(source, target))
            back.start()
            while data := target.recv(1 << 16):
                source.sendall(data)
            source.shutdown(socket.SHUT_WR)
            back.join(WAIT_S)

    def _carry_back(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
        except OSError:
            return
