"""A relay that damages what it carries."""

from __future__ import annotations

import socket
import threading

END_S = 20.0


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
