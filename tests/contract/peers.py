"""Real peers for the contract suite: processes, and a relay that damages what it carries."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.contract.kinds import Kind

START_S = 60.0
END_S = 20.0
_ROOT = Path(__file__).resolve().parents[2]


class PeerProcess:
    """A source that can be killed, frozen and resumed."""

    def __init__(self, kind: Kind, blocks: int, widths: Sequence[int], seed: str) -> None:
        config = {
            "backend": kind.name,
            "options": kind.options,
            "blocks": blocks,
            "widths": list(widths),
            "seed": seed,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.peer_process", json.dumps(config)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        assert ready, f"the peer process said nothing within {START_S} s"
        self.description = bytes.fromhex(self._process.stdout.readline().decode().strip())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(END_S)

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process.poll() is None:
            self.resume()
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


class FlippingRelay:
    """Carries TCP both ways and inverts one byte of what comes from the source.

    ``flip_at`` counts the bytes from the source on each connection; None leaves all as it is.
    """

    def __init__(self, flip_at: int | None) -> None:
        self.flip_at = flip_at
        self.upstream = ("127.0.0.1", 0)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(END_S)
        for one in self._sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(END_S)
            assert not thread.is_alive()
        for one in (self._listening, *self._sockets):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                target, _ = self._listening.accept()
            except OSError:
                return
            source = socket.create_connection(self.upstream, timeout=END_S)
            source.settimeout(None)
            self._sockets += [target, source]
            for pair in ((target, source, None), (source, target, self.flip_at)):
                thread = threading.Thread(target=_carry, args=pair)
                self._threads.append(thread)
                thread.start()


def _carry(giver: socket.socket, taker: socket.socket, flip_at: int | None) -> None:
    carried = 0
    try:
        while data := bytearray(giver.recv(1 << 16)):
            if flip_at is not None and carried <= flip_at < carried + len(data):
                data[flip_at - carried] ^= 0xFF
            carried += len(data)
            taker.sendall(data)
        taker.shutdown(socket.SHUT_WR)
    except OSError:
        return
